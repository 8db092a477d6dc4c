"""Language models in the open, as one reproducible graph of Python steps."""

__version__ = "0.1.0"
