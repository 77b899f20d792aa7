"""The parts of Box2D 2.3 that the game uses, operation by operation, in float32 arithmetic."""
