"""How large a replay is, before there is one."""

from __future__ import annotations

import numpy as np

from slipstream.core.spec import Spec
from slipstream.experience.replay.plan import ReplayPlan
from slipstream.experience.replay.tree import tree_levels


def slots_of(plan: ReplayPlan, spec: Spec, num_envs: int) -> int:
    """S of each ring: the transitions, the head, and final observations by the time limit."""
    length, limit = plan.length(num_envs), spec.max_episode_steps
    return length + 1 + (0 if limit is None else -(-length // limit) + 1)


def observation_bytes(spec: Spec) -> int:
    """Of one observation as it is."""
    numbers = int(np.prod(spec.observation_shape, dtype=np.int64))
    return numbers * spec.observation_dtype.itemsize


def keeps_fields(plan: ReplayPlan, spec: Spec, fields: int | None, masked: bool) -> bool:
    """Whether a kernel's fields are kept in place of observations, see `ReplayPlan.storage`.

    Args:
        plan, spec: of the replay.
        fields: bytes that they take; None: there is no kernel that can show an observation again.
        masked: whether there is a mask of allowed choices.
    """
    if fields is None or plan.storage == "dense":
        return False
    return plan.storage == "fields" or masked or fields < observation_bytes(spec)


def replay_bytes(
    plan: ReplayPlan, spec: Spec, members: int, num_envs: int, fields: int | None = None
) -> int:
    """Bytes that the arrays of M members will take, see `Replay`.

    Args:
        plan, spec: of the replay; members: M; num_envs: N.
        fields: as for `keeps_fields`.
    """
    slots = slots_of(plan, spec, num_envs)
    slot = 4 * (spec.action_width + 2)
    if keeps_fields(plan, spec, fields, spec.masked):
        slot += fields or 0
    else:
        slot += observation_bytes(spec) + (spec.choices if spec.masked else 0)
    levels, nodes = tree_levels(num_envs * slots)
    tree = 4 * (2 * nodes - int(levels[1])) if plan.alpha else 0
    return members * (num_envs * (slots * slot + 16) + tree)
