"""What a study concludes: confirmation, hold-out, winner, result."""
