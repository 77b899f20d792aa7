"""Machines that lend their cores to a study: the owner's side, theirs, and the line between."""
