"""Persistent storage: atomic files, tables, checkpoints, status, provenance."""
