"""Checks: what is odd in the files that were read, what loading does about it, what mends it."""
