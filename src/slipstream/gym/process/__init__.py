"""Copies in worker processes, over one shared block: the `process` backend."""
