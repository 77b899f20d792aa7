"""slipstream at the measured work; each function is called in a process of its own."""
