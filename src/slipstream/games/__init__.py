"""Games of two players: their rules, self-play and tournaments."""
