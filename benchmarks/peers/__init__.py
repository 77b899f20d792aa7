"""Other libraries at the same work; each function is called in a process of its own."""
