"""Networks, experience, and the algorithms that learn from it."""
