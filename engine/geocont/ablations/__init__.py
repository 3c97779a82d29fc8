"""Experiments that train networks in which geometric continuity forms or collapses."""
