"""nanohost hosts LLM agents for people who already run Django."""

__version__ = "0.1.0"
