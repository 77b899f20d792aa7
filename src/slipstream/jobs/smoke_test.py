"""Smoke test of an installation: train, kill, resume, evaluate and report."""

from __future__ import annotations

import importlib.metadata
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from slipstream.core.storage import checkpoint
from slipstream.core.storage.resource_monitor import Gpus
from slipstream.jobs.job_process import current_environment, last_log_line, start_process
from slipstream.training.runs.run import CHECKPOINTS, REPORT, RESULT

_TRAIN = (
    "train",
    "cartpole",
    "--num-envs=8",
    "--total-timesteps=81920",
    "--set=training.keep_last=1",
)
# Short trainings that compile an agent's loops, which all environments share.
_WARM = (("ppo", "pendulum"), ("dqn", "cartpole"), ("sac", "pendulum"), ("td3", "pendulum"))
_WARM_SECONDS = 75.0  # no further training starts after this time, to stay below two minutes
_SECONDS = 120.0  # timeout of a command; compiling takes most of it
# Optional distributions and their purpose.
_OPTIONAL = {
    "torch": "images, GPUs, reference implementations of the algorithms",
    "stable-baselines3": "adapter (with VecMonitor)",
    "elegantrl": "adapter; the adapter itself requires only torch",
    "envpool": "wrapper",
    "pettingzoo": "adapter",
    "ray": "clusters",
    "onnx": "opponents from other projects",
    "openskill": "ratings of players",
}


class SmokeTestError(Exception):
    """A step failed; the message names the step and the observation."""


def run_smoke_test(folder: Path) -> Iterator[tuple[str, float]]:
    """Compile, train, kill, resume, compare, evaluate and report within two minutes.

    Later trainings by the agents that the last line lists compile only their environment.

    Args:
        folder: an empty folder; runs and their output are left in it.

    Yields:
        After each step its description and its seconds.

    Raises:
        SmokeTestError: a step failed.
    """
    first = began = time.monotonic()

    def taken() -> float:
        nonlocal began
        seconds, began = time.monotonic() - began, time.monotonic()
        return seconds

    _run_command(folder, "calm", *_TRAIN, "--out=calm")
    yield "compile the loops, train CartPole and write a report", taken()
    _train_and_kill(folder)
    yield "kill a training (SIGKILL) after a checkpoint", taken()
    _run_command(folder, "killed", "resume", "killed")
    if _last_checkpoint(folder / "calm") != _last_checkpoint(folder / "killed"):
        raise SmokeTestError("the resumed training ended with other weights")
    yield "resume it and compare: the final weights are bit-identical", taken()
    report = folder / "killed" / REPORT
    report.unlink()
    _run_command(folder, "evaluated", "evaluate", "killed")
    if not report.stat().st_size:
        raise SmokeTestError(f"the report {report} is empty")
    yield "evaluate the policy and write the report again", taken()
    warm: list[str] = []
    for agent, env in _WARM:
        if time.monotonic() - first < _WARM_SECONDS:
            name, steps = f"--set=agent.name={agent}", "--total-timesteps=2048"
            _run_command(folder, agent, "train", env, name, steps, "--no-report", f"--out={agent}")
            warm.append(agent.upper())
    left = "" if len(warm) == len(_WARM) else "; other agents compile in their first training"
    yield f"compile the loops of {' '.join(warm) or 'no agent'}{left}", taken()


def list_optional() -> list[tuple[str, str]]:
    """Return optional dependencies and their versions."""
    rows = []
    for name, purpose in _OPTIONAL.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        rows.append((name, f"{version}: {purpose}"))
    cards = ", ".join(str(card["name"]) for card in Gpus().describe())
    return [*rows, ("GPU", cards or "no GPU")]


def _run_command(folder: Path, name: str, *command: str) -> None:
    """Run a command to its end."""
    output = folder / f"{name}.txt"
    process = start_process(command, output, {**current_environment(), "cwd": folder})
    try:
        code = process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise SmokeTestError(
            f"`slipstream {' '.join(command)}` took over {_SECONDS:.0f} s"
        ) from None
    if code:
        raise SmokeTestError(f"`slipstream {' '.join(command)}`: {last_log_line(output) or code}")


def _train_and_kill(folder: Path) -> None:
    """Train into ``killed`` and kill the process after the first checkpoint."""
    output = folder / "killed.txt"
    process = start_process(
        (*_TRAIN, "--out=killed"), output, {**current_environment(), "cwd": folder}
    )
    deadline = time.monotonic() + _SECONDS
    try:
        while not checkpoint.checkpoints(folder / "killed" / CHECKPOINTS):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SmokeTestError(f"it wrote no checkpoint: {last_log_line(output)}")
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    if (folder / "killed" / RESULT).exists():
        raise SmokeTestError("the training ended before it could be killed; run the test again")


def _last_checkpoint(run: Path) -> dict[str, bytes]:
    """Return all tensors of the last checkpoint."""
    tensors, _ = checkpoint.load(checkpoint.checkpoints(run / CHECKPOINTS)[-1])
    return {name: tensor.tobytes() for name, tensor in tensors.items()}
