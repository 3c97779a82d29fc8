"""From a model name to one weight matrix at a time."""
