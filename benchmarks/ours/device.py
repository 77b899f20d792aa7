"""Speed of slipstream's torch implementations on a GPU, and the time of their phases."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.ours.hardware import operations
from benchmarks.ours.training import speed
from benchmarks.suites.study import PLANTED_FEATURES
from slipstream.core.errors import ResourceError
from slipstream.core.extras import import_optional
from slipstream.markets.synthetic import SyntheticCrypto
from slipstream.studies.config import read_published_space, space_settings
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import RunConfig
from slipstream.training.workers import make_shard

_PHASES = (
    "act",
    "learn",
    "update",
)  # phases of an agent; the rest are environments and their replay
_FOLDS, _TRIALS, _BARS = 6, 500, 20_000


def no_card() -> str | None:
    """Return the reason why no GPU can be measured here, in one line; None if there is one."""
    try:
        import_optional("torch", "GPU benchmarks are", "torch")
        from slipstream.rl.nets.torch_device import get_device  # imports torch only when needed

        get_device("cuda:0")
    except ResourceError as error:
        return str(error)
    return None


class Clock:
    """Seconds of calls: between two events of the GPU's stream, or wall time on a CPU."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch: Any = torch  # Event has no types
        self._device = torch.device(device)
        self._marks: dict[str, list[tuple[Any, Any]]] = {}

    def watch(self, owner: Any, name: str) -> None:
        """Time a method of an object from now on."""
        call: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **more: Any) -> Any:
            began = self._mark()
            answer = call(*args, **more)
            self._marks.setdefault(name, []).append((began, self._mark()))
            return answer

        setattr(owner, name, timed)

    def _mark(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Wait until the GPU has finished its queued work."""
        if self._device.type != "cpu":
            self._torch.cuda.synchronize(self._device)

    def forget(self) -> None:
        """Discard the times recorded so far."""
        self.wait()
        self._marks.clear()

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each method."""
        self.wait()
        on_processor = self._device.type == "cpu"
        return {
            name: sum(b - a if on_processor else a.elapsed_time(b) / 1e3 for a, b in marks)
            for name, marks in self._marks.items()
        }

    def card(self) -> str:
        """Return the name of the device."""
        if self._device.type == "cpu":
            return "CPU"
        return str(self._torch.cuda.get_device_name(self._device))

    def peak(self) -> float:
        """Return the peak memory in GB."""
        if self._device.type == "cpu":
            return 0.0
        return float(self._torch.cuda.max_memory_allocated(self._device) / 1e9)


def phases(config: Mapping[str, Any], seconds: float, device: str = "cuda:0") -> dict[str, Any]:
    """Measure steps and updates per second of all members in torch, and the time by phase.

    Measured are whole iterations after the first ones that update the networks.

    Args:
        config: sections of a run's config.
        seconds: duration of the measurement.
        device: device of the learner.
    """
    run, _ = RunConfig.from_mapping(config).with_opponent()
    run = run.with_training(device=device, learner="torch")
    environment = resolve_environment(run.env_name, run.env_settings)
    clock, members = Clock(device), run.training.members
    shard = make_shard(run, environment, range(members), lambda: None)
    shard.reset()
    while not shard.iterate(0.0)["updates"].all():
        pass
    for name in _PHASES:
        clock.watch(shard.agent, name)
    shard.iterate(0.0)
    clock.forget()
    iterations, updates, began = 0, 0, time.perf_counter()
    while iterations == 0 or time.perf_counter() - began < seconds:
        updates += int(shard.iterate(0.0)["updates"].sum())
        iterations += 1
    clock.wait()
    elapsed, spent = time.perf_counter() - began, clock.seconds()
    total_envs = members * int(run.training.num_envs)
    steps = iterations * total_envs * run.agent.iteration_steps(int(run.training.num_envs))
    shares = ", ".join(f"{name} {spent[name] / elapsed:.0%}" for name in _PHASES if name in spent)
    return {
        "steps_per_second": steps / elapsed,
        "updates_per_second": updates / elapsed,
        "phases": {name: value / elapsed for name, value in spent.items()},
        "told": f"{clock.card()}: of the time {shares}; {clock.peak():.2g} GB at most",
    }


@contextmanager
def mean_trial(members: int = _FOLDS, **agent: Any) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the config and steps of the mean trial of the space `cappuccino` on synthetic prices.

    Args:
        members: number of folds, trained together.
        agent: settings that replace the mean trial's.
    """
    space = read_published_space("cappuccino")

    def mean(name: str) -> float:
        bounds = space[name]
        numbers = bounds.get("choices") or (bounds["low"], bounds["high"])
        return float(
            np.mean([number[0] if isinstance(number, list) else number for number in numbers])
        )

    num_envs, rows = 16, 4096
    widths = [int(mean("agent.net_arch"))] * 3
    n_steps = math.ceil(mean("agent.rollout_rows") / rows) * rows // num_envs
    agent_config = {
        "net_arch": widths,
        "activation": "relu",
        "batch_size": rows,
        "n_steps": n_steps,
    }
    agent_config |= {"n_epochs": int(mean("agent.n_epochs")), **agent}
    env: dict[str, Any] = {"name": "portfolio", "features": list(PLANTED_FEATURES)}
    for path, value in space_settings("cappuccino").items():
        at, (section, *between, key) = env, path.split(".")
        for name in between if section == "env" else ():
            at = at.setdefault(name, {})
        at |= {key: value} if section == "env" else {}
    training = {"num_envs": num_envs, "members": members, "total_timesteps": 10**9}
    with tempfile.TemporaryDirectory(prefix="slipstream-bench-") as folder:
        SyntheticCrypto().write(folder, _BARS)
        config = {
            "env": {**env, "data": {"folder": folder}},
            "agent": agent_config,
            "training": training,
        }
        yield {**config, "evaluation": {"every": 1.0}}, mean("training.total_timesteps")


def cappuccino(
    seconds: float,
    device: str = "cuda:0",
    learner: str = "torch",
    members: int = _FOLDS,
    precision: str = "float32",
    **agent: Any,
) -> dict[str, Any]:
    """Measure the mean trial's speed, and the resulting hours of one trial and of 500.

    Args:
        seconds, device: as for `phases`; a CPU trains as `slipstream train` does.
        learner: ``compiled`` on the CPU, or ``torch``.
        members, agent: as for `mean_trial`.
        precision: `training.precision` on the CPU.
    """
    with mean_trial(members, **agent) as (config, total):
        agent_config = config["agent"]
        if learner == "compiled" or device == "cpu":
            config["training"] |= {"learner": learner, "precision": precision}
            env = {name: value for name, value in config["env"].items() if name != "name"}
            seen = math.prod(resolve_environment("portfolio", env).spec.observation_shape)
            layers = list(pairwise([seen + 1, *agent_config["net_arch"]]))  # actor and critic
            # An update begins with a forward pass of the critic over its rollout.
            values = sum(2.0 * a * b for a, b in layers)
            answer = speed(
                config, seconds, 2.0 * agent_config["n_epochs"] * operations(layers) + values
            )
        else:
            answer = phases(config, seconds, device)
    work = _FOLDS * total / answer["steps_per_second"]
    totals = {"trial_hours": work / 3600, "days": _TRIALS * work / 86_400}
    return {**answer, **totals, "width": agent_config["net_arch"][0]}
