"""What a replay takes: the fields that observations are made of, against observations."""

from __future__ import annotations

from collections.abc import Iterable

from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.suite import Case, SuiteOptions
from slipstream.bench.worker import run_worker

_MILLION = 1_000_000
_SAMPLE = 20_000  # transitions, for bytes of one


def _filled(environment: str, transitions: int, storage: str) -> dict[str, float]:
    asked = {"environment": environment, "settings": {}, "transitions": transitions}
    asked["storage"] = storage
    return run_worker("ours.replay_memory", asked, threads=1, timeout=1200.0)


def replay_memory(settings: SuiteOptions) -> Iterable[Row]:
    """Bytes of a transition, both ways."""
    del settings
    fields, dense = (
        _filled("forex_window", _SAMPLE, storage)["bytes"] / _SAMPLE
        for storage in ("fields", "dense")
    )
    yield Row(
        case="replay_memory",
        unit="bytes of a transition of forex (60 bars x 16 features), by the STATE fields that "
        "`observe` reads",
        ours=fields,
        peer=dense,
        peer_name="whole observations",
        ratio=Ratio.of([dense / fields]),
    )


def replay_forex(settings: SuiteOptions) -> Iterable[Row]:
    """A million transitions of windows, as the process grows."""
    del settings
    answer = _filled("forex_window", _MILLION, "fields")
    yield Row(
        case="replay_forex",
        unit="MB that a process grows by when a replay of a million transitions of forex (60 bars "
        "x 16 features) fills",
        ours=answer["resident"] / 1e6,
        **judged(Goal("<=", 150), answer["resident"] / 1e6),
    )


CASES: dict[str, Case] = {case.__name__: case for case in (replay_memory, replay_forex)}
