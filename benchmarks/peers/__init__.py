"""Other libraries at the same work, one file each; every one runs in a process of its own."""
