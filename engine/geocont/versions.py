"""The versions that a run was made with."""

import importlib.metadata
import platform

import torch


def versions() -> dict[str, str]:
    """Of Python, and of the packages that numbers depend on."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("geocont-tui", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
