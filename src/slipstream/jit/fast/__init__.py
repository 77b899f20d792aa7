"""Optional shortcuts that make the first start faster."""
