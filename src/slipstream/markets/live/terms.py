"""Terms: how an account was begun and is led, kept beside it for whoever goes on with it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slipstream.core.errors import CheckpointError
from slipstream.core.reader import read_json
from slipstream.core.storage.files import make_folder, write_sealed
from slipstream.markets.live.limits import Limits

ACCOUNT, NO_BROKER = "account.json", "none"


class Terms(NamedTuple):
    """Those of one account.

    Attributes:
        start: first moment decided on, UTC seconds; None: the first bar with all features.
        feed: its word, whose path is absolute.
        broker: its word, or `NO_BROKER`.
        limits: of what is sent there.
        time_zone: zone of the feed's stamps that carry none; None: that of the deployment.
    """

    start: int | None
    feed: str
    broker: str
    limits: Limits
    time_zone: str | None = None

    @classmethod
    def kept(cls, folder: Path) -> Terms | None:
        """Those in an account's folder; None before it has begun."""
        remedy = "Deploy again, which begins a new account."
        found = read_json(folder / ACCOUNT, CheckpointError, remedy, shape={"feed": str})
        if found is None:
            return None
        limits = Limits(**found.get("limits", {}))
        zone = found.get("time_zone")
        return cls(found["start"], found["feed"], found.get("broker", NO_BROKER), limits, zone)

    def keep(self, folder: Path) -> None:
        """Writes them into an account's folder."""
        make_folder(folder)
        write_sealed(folder / ACCOUNT, {**self._asdict(), "limits": self.limits.model_dump()})
