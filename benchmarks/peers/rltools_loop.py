"""RLtools: loops with compile-time shapes, on its own Pendulum, with MKL or without.

Its wheel contains headers only. g++ (-O3 -march=native, as its Python package calls it) compiles a
module of each arrangement before the measurement and keeps it for the next run.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.worker import side_by_side, stay_on

_ENVIRONMENT = """
#include <rl_tools/rl/environments/pendulum/operations_generic.h>
template <typename T, typename TI>
using ENVIRONMENT_FACTORY = rl_tools::rl::environments::Pendulum<
    rl_tools::rl::environments::pendulum::Specification<T, TI>>;
"""
_FAR = 1_000_000_000  # steps; never reached, because time ends a measurement
_REPLAY = 100_000  # transitions
_BATCH = 256
_WARM_UP = 600  # calls of an off-policy loop: a batch, and some updates after it


def pendulum(processes: int, threads: int, seconds: float, **asked: Any) -> dict[str, float]:
    """Measure training steps per second on Pendulum.

    Args:
        processes: concurrent trainings, each on its own core; their rates are added.
        threads: threads of MKL in a single process.
        seconds: duration of the measurement.
        asked: `algorithm` (``SAC`` and ``TD3`` with an update of 256 rows a step, ``PPO`` with 64
            envs, 256 steps and 4 epochs of 4,096), `width` of both hidden layers, `products`
            (``mkl``, or ``loops``: RLtools' own).
    """
    _module(**asked)  # compiled once for all processes
    return side_by_side(
        "peers.rltools_loop.alone", {"seconds": seconds, **asked}, processes, threads
    )


def alone(cores: list[int], seconds: float, **asked: Any) -> dict[str, float]:
    """Run the loop in this process, on the given cores."""
    stay_on(cores)
    loop = _module(**asked).State(1)
    call_steps, warm_up = (64 * 256, 2) if asked["algorithm"] == "PPO" else (1, _WARM_UP)
    for _ in range(warm_up):
        loop.step()
    some, calls, began = 1 if call_steps > 1 else 50, 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(some):
            loop.step()
        calls += some
    return {"steps_per_second": call_steps * calls / (time.perf_counter() - began)}


def _module(algorithm: str, width: int, products: str) -> Any:
    """Return the compiled module of an arrangement."""
    if products == "loops":
        os.environ["RL_TOOLS_DISABLE_MKL"] = "1"  # read on import
    import rltools

    folder = Path(tempfile.gettempdir()) / "slipstream-bench-rltools"
    folder.mkdir(exist_ok=True)
    (folder / "environment.h").write_text(_ENVIRONMENT)
    sizes: dict[str, Any] = {
        **{f"{net}_HIDDEN_DIM": width for net in ("ACTOR", "CRITIC")},
        **{f"{net}_NUM_LAYERS": 3 for net in ("ACTOR", "CRITIC")},  # two hidden layers
        "STEP_LIMIT": _FAR,
    }
    if algorithm == "PPO":
        sizes |= {"N_ENVIRONMENTS": 64, "ON_POLICY_RUNNER_STEPS_PER_ENV": 256}
        sizes |= {"BATCH_SIZE": 4096, "N_EPOCHS": 4}
    else:
        sizes |= {"ACTOR_BATCH_SIZE": _BATCH, "CRITIC_BATCH_SIZE": _BATCH}
        sizes |= {"REPLAY_BUFFER_CAP": _REPLAY, "COLLECT_EPISODE_STATS": False}
    name = f"slipstream_{algorithm.lower()}_{width}_{products}"
    spec = {"path": str(folder), "observation_dim": 3, "action_dim": 1}
    return getattr(rltools, algorithm)(
        spec, interface_name=name, enable_evaluation=False, force_blas=products == "mkl", **sizes
    )
