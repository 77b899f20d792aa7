"""Published search spaces, ready to use by name."""
