"""The page of any run: what is evaluated for it, and which page it gets."""
