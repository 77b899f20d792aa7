"""slipstream at the measured work, one file each; every one runs in a process of its own."""
