"""What only shortens a first start."""
