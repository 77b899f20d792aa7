"""A run and its directory: what it left behind, and what can be done with it."""
