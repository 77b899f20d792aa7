"""A run and its directory, its policies and their matches."""
