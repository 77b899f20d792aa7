"""Environments of other people: making them and stepping them here or in worker processes."""
