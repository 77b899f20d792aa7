"""Decisions of a policy in a market: replayed, compared, measured; and the days they have seen."""
