"""Plain functions as machine code: compiled, cached, linked, and what processors do at once."""
