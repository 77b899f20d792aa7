"""Config of a run, and values derived from it."""
