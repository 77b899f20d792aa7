"""Networks, experience and learning algorithms."""
