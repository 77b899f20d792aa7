"""What the game needs of Box2D 2.3, in its order of operations and with float32 arithmetic."""
