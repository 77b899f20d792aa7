"""Matrix products in machine code."""
