"""Shards in processes of their own: on this machine, and on those of a cluster."""
