"""Games: hockey and tic-tac-toe, self-play and tournaments."""
