"""Games of two: self-play, whom a policy beats, and who ranks first."""
