"""The hockey project's config files and calls, as they are, on our trainer."""
