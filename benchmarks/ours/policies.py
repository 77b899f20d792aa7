"""Saved policy that acts in a process that has loaded nothing else."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.core.storage import checkpoint
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import pack
from slipstream.training.environments.factory import resolve_environment

# Loads the policy and acts; prints ms until the first action, and us of one action.
_ACTS = """
import json, sys, time
import numpy as np
import safetensors.numpy
row = np.linspace(-1.0, 1.0, int(sys.argv[2]), dtype=np.float32).reshape(json.loads(sys.argv[3]))
begun = time.perf_counter()
from slipstream import portable
policy = portable.load(sys.argv[1])
policy.act(row)
loaded, spent = time.perf_counter() - begun, []
until = time.perf_counter() + float(sys.argv[4])
while time.perf_counter() < until:
    begun = time.perf_counter()
    for _ in range(100):
        policy.act(row)
    spent.append((time.perf_counter() - begun) / 100)
print(1e3 * loaded, 1e6 * sorted(spent)[len(spent) // 2])
"""


def portable(
    name: str, settings: Mapping[str, Any], net_arch: list[int], seconds: float
) -> dict[str, float]:
    """Measure the ms of `portable.load` and the first act, and the us of one observation's act.

    Args:
        name, settings: kernel that defines the policy's observations and actions.
        net_arch: hidden layers, with tanh between them.
        seconds: duration of the acting.
    """
    spec = resolve_environment(name, settings).spec
    tensors, manifest = pack(Policy([spec], [0], net_arch=tuple(net_arch)))
    shape, numbers = spec.observation_shape, math.prod(spec.observation_shape)
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as place:
        folder = checkpoint.save(Path(place) / "policy", tensors, {"policy": manifest})
        given = [str(folder), str(numbers), json.dumps(list(shape)), str(seconds)]
        ran = subprocess.run(
            [sys.executable, "-c", _ACTS, *given], capture_output=True, text=True, check=True
        )
    load, act = map(float, ran.stdout.split())
    return {"load_ms": load, "act_us": act, "numbers": float(numbers)}
