"""Soft actor-critic's actions in training, drawn from its policy."""

from __future__ import annotations

from typing import Any

from slipstream.nets.drawing import draw_member_squashed


def explore(
    by: Any, m: int, key: Any, uniform: bool, lo: int, hi: int, obs: Any, action: Any,
    log_prob: Any, out: Any,
) -> None:  # fmt: skip
    """See `actor_critic/act.py`."""
    draw_member_squashed(by.decider, m, key, 0, lo, hi, obs, uniform, action, log_prob, out)
