"""The version of slipstream: in a file that imports nothing, so that every folder can name it."""

__version__ = "0.1.0"
