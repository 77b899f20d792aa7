"""A card that is lent for half an hour: what travels there, and what is asked of it. README.md."""
