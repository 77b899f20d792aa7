"""Copies of somebody else's environments."""
