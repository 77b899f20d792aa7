"""Input that looks malformed and is accepted, with the reason."""

ACCEPTED: dict[str, str] = {}
