"""Training of runs and studies on the nodes of a Ray cluster."""
