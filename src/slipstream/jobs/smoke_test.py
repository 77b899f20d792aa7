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
# Trainings of a moment, for what they compile: an agent's loops are the same in all environments.
_WARM = (("ppo", "pendulum"), ("dqn", "cartpole"), ("sac", "pendulum"), ("td3", "pendulum"))
_WARM_SECONDS = 75.0  # after which none of them begins, so that two minutes are enough
_SECONDS = 120.0  # for one command; compiling takes most of it
# What is optional, by the names of distributions.
_OPTIONAL = {
    "torch": "images, cards, the definitions of the algorithms",
    "stable-baselines3": "its face (with VecMonitor)",
    "elegantrl": "trains on its face, which needs torch alone",
    "envpool": "its face",
    "pettingzoo": "its face",
    "ray": "several machines",
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
    yield "compiles its loops, trains CartPole and writes a report", taken()
    _train_and_kill(folder)
    yield "is killed (SIGKILL) after a checkpoint", taken()
    _run_command(folder, "killed", "resume", "killed")
    if _last_checkpoint(folder / "calm") != _last_checkpoint(folder / "killed"):
        raise SmokeTestError("resumed, the killed training ended with other weights")
    yield "resumes, and ends with the same weights, bit for bit", taken()
    report = folder / "killed" / REPORT
    report.unlink()
    _run_command(folder, "evaluated", "evaluate", "killed")
    if not report.stat().st_size:
        raise SmokeTestError(f"the page {report} is empty")
    yield "evaluates the policy and writes its page again", taken()
    warm: list[str] = []
    for agent, env in _WARM:
        if time.monotonic() - first < _WARM_SECONDS:
            name, steps = f"--set=agent.name={agent}", "--total-timesteps=2048"
            _run_command(folder, agent, "train", env, name, steps, "--no-report", f"--out={agent}")
            warm.append(agent.upper())
    left = "" if len(warm) == len(_WARM) else "; another's first training compiles its own"
    yield f"compiles the loops of {' '.join(warm) or 'no agent'}{left}", taken()


def list_optional() -> list[tuple[str, str]]:
    """Return optional dependencies and their versions."""
    rows = []
    for name, purpose in _OPTIONAL.items():
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        rows.append((name, f"{found}: {purpose}"))
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
        raise SmokeTestError("it was complete before it could be killed: try again")


def _last_checkpoint(run: Path) -> dict[str, bytes]:
    """Return all tensors of the last checkpoint."""
    tensors, _ = checkpoint.load(checkpoint.checkpoints(run / CHECKPOINTS)[-1])
    return {name: tensor.tobytes() for name, tensor in tensors.items()}
