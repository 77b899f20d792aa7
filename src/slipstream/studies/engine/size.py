"""Size of a member: the bytes of its networks, and of everything while it is trained."""

from __future__ import annotations

import itertools

import numpy as np

from slipstream.agents.ppo.inputs import update_bytes
from slipstream.core.spec import Spec
from slipstream.experience.rollout import rollout_bytes
from slipstream.training.config import RunConfig

_COPIES = 4  # of every weight: itself, its gradient, Adam's two moments


def weight_bytes(config: RunConfig, spec: Spec) -> int:
    """Of actor and critic, float32."""
    widths = (int(np.prod(spec.observation_shape)) + 1, *config.agent.widths, spec.action_width)
    return 2 * 4 * sum(a * b for a, b in itertools.pairwise(widths))


def member_bytes(config: RunConfig, spec: Spec) -> int:
    """What a member more in a batch takes: rollout, update, weights and their optimiser."""
    horizon, n = config.agent.horizon, config.training.num_envs
    assert isinstance(n, int)
    shape, dtype = spec.observation_shape, spec.observation_dtype
    held = rollout_bytes(horizon, 1, n, shape, dtype, spec.action_width, spec.action_dtype)
    return held + update_bytes(spec, horizon, 1, n) + _COPIES * weight_bytes(config, spec)
