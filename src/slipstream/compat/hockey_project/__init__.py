"""Config files and calls of the hockey project."""
