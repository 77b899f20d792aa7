"""Replay: the experience that off-policy agents keep and draw from."""
