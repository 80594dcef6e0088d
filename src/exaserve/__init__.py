"""ExaServe: one dependable OpenAI-compatible endpoint over your own machines."""

__all__ = ["__version__"]

__version__ = "0.1.0"
