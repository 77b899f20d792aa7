"""Callbacks of a run: events, console, curves, tables. No result depends on them."""
