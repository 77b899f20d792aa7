"""Sub-environments in worker processes, over one shared block: the `process` backend."""
