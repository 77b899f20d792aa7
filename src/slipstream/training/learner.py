"""Which of an algorithm's two forms learns, and where."""

from __future__ import annotations

from typing import Literal

from slipstream.core.errors import ConfigError
from slipstream.core.extras import require_torch
from slipstream.runs.run import Run
from slipstream.settings.sections import TrainingConfig

Learner = Literal["compiled", "torch"]


def learner_of(learner: str, device: str, image: bool) -> Learner:
    """The form that a config means: it follows from config and spaces, never from the machine.

    Args:
        learner, device: of the config's section `training`.
        image: whether observations are images.

    Raises:
        ConfigError: the compiled form is asked for and cannot do it.
    """
    needed = None
    if device != "cpu":
        needed = f"training.device is {device}"
    elif image:
        needed = "the observations are images"
    if learner == "compiled" and needed is not None:
        raise ConfigError(
            f"training.learner is 'compiled', and {needed}: the compiled form learns from rows of "
            "numbers on the processor. Leave training.learner at auto, which takes the torch form."
        )
    if learner == "auto":
        return "compiled" if needed is None else "torch"
    return "torch" if learner == "torch" else "compiled"


def check_learner(training: TrainingConfig, image: bool) -> Learner:
    """`learner_of`, refused in a paragraph where this machine lacks what it takes.

    Raises:
        ConfigError: as there.
        ResourceError: no torch, no build of it for GPUs, or no such card.
    """
    learner = learner_of(training.learner, training.device, image)
    if learner == "torch":
        require_torch(_purpose(training))
        from slipstream.nets.torch_device import device_of  # torch: only where it is used

        device_of(training.device)
    return learner


def last_device(run: Run) -> str:
    """Where a run was trained last: it goes on there unless another device is asked for."""
    return str(run.provenance.get("device", run.config.training.device))


def note_device(run: Run, device: str, steps: int) -> None:
    """Says and records that a run goes on elsewhere, from that many steps on."""
    before = last_device(run)
    if device == before:
        return
    sentence = (
        f"From step {steps:,} on this run is trained on {device}, before that it was on {before}: "
        "it agrees to rounding only with a run that was never moved."
    )
    run.say(sentence)
    run.record(device=device, notes=[*run.provenance.get("notes", []), sentence])


def _purpose(training: TrainingConfig) -> str:
    if training.device != "cpu":
        return f"Training on {training.device} is done"
    if training.learner == "torch":
        return "`training.learner: torch` learns"
    return "Learning from images is done"
