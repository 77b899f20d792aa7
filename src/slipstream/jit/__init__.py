"""Machine code from plain Python functions."""
