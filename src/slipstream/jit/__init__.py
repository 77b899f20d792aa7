"""Compilation of plain Python functions to machine code, with an on-disk cache."""
