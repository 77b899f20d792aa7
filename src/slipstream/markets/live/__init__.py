"""Live: bars come in, a deployed policy decides, a paper account follows."""
