"""What a user's kernel pays for being compiled with checks: `slipstream bench env --case checks`.

Built-in kernels are copied to files, and so compiled like anybody's, and run against themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipstream.bench.forex_settings import ALL_RULES
from slipstream.bench.row import Goal, Ratio, Row, judged
from slipstream.bench.suite import SuiteOptions
from slipstream.bench.worker import run_worker

_KERNELS: tuple[tuple[str, Mapping[str, Any], int], ...] = (
    ("cartpole", {}, 1024),
    ("pendulum", {}, 1024),
    ("forex", ALL_RULES, 4096),
)


def checks(settings: SuiteOptions) -> Iterable[Row]:
    """Cost of a step with checks, relative to one without."""
    for name, env, copies in _KERNELS:
        asked = {"name": name, "settings": dict(env), "num_envs": copies}
        asked["seconds"] = 4 * settings.seconds
        found = run_worker("ours.checked_steps", asked, threads=1)
        ratio = Ratio(*(float(found[key]) for key in ("ratio", "least", "most")))
        yield Row(
            case="checks",
            unit=f"ns per step of {name} with checks ({copies:,} copies, one thread's CPU time); "
            "ratio = cost relative to without, range of the middle 80 %",
            ours=float(found["checked"]),
            peer=float(found["plain"]),
            peer_name="without",
            ratio=ratio,
            **judged(Goal("<=", 1.5), ratio.median),
        )
