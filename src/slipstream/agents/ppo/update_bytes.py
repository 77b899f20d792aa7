"""Memory that PPO's updates need beside the rollout."""

from __future__ import annotations

import numpy as np

from slipstream.core.spec import Spec
from slipstream.nets.networks import input_width


def update_bytes(spec: Spec, horizon: int, members: int, num_envs: int) -> int:
    """Bytes that an update keeps beside the rollout.

    Scaled observations and the losses' rows are of one member at a time.
    """
    own = num_envs * (horizon + 1)
    image = spec.observation_dtype == np.uint8 and len(spec.observation_shape) == 3
    numbers = 0 if image else input_width(int(np.prod(spec.observation_shape)))
    # Packed columns and orders; the float copy of actions, reward, value, advantage, target and
    # their temporaries.
    return 4 * own * (numbers + spec.action_width + 9 + members * (spec.action_width + 6))
