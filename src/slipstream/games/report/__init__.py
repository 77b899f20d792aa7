"""The page of a run without prices: returns of fresh episodes, members, opponents."""
