"""Outcome of a study: confirmation, hold-out, final model, result."""
