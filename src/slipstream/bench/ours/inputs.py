"""How many numbers the networks of a config see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from slipstream.bench.worker import serve
from slipstream.training.config import RunConfig
from slipstream.training.environment import resolve_environment


def measure(config: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of an observation, one more for the bias."""
    resolved = RunConfig.from_mapping(config)
    spec = resolve_environment(resolved.env_name, resolved.env_settings).spec
    return {"inputs": math.prod(spec.observation_shape) + 1}


if __name__ == "__main__":
    serve(measure)
