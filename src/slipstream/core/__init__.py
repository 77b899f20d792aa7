"""Foundations of all other packages: errors, configuration, random streams, storage."""
