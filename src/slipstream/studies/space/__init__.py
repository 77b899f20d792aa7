"""What a study varies: ranges, the space, settings by trial."""
