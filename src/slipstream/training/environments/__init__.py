"""What can be trained on: made from names, stepped, evaluated."""
