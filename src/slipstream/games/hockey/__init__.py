"""The two-player hockey game on a port of Box2D, float32 bit for bit."""
