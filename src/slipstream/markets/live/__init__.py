"""Live trading: a deployed policy decides on new bars and manages a paper account."""
