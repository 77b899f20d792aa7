"""Which of an algorithm's two forms learns, and where."""

from __future__ import annotations

from typing import Any, Literal

from slipstream.core.errors import ConfigError
from slipstream.core.extras import require
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import RunConfig
from slipstream.training.settings.sections import TrainingConfig

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


def check_learner(training: TrainingConfig, image: bool | None) -> Learner:
    """`learner_of`, refused in a paragraph where this machine lacks what it takes.

    Args:
        training: the config's section.
        image: whether observations are images; None before that is known: the rest is checked.

    Raises:
        ConfigError: as there; the form or device has no such precision.
        ResourceError: no torch, no build of it for GPUs, or no such card.
    """
    learner = learner_of(training.learner, training.device, bool(image))
    if image is not None:
        _check_precision(training, learner)
    if learner == "torch":
        require("torch", _purpose(training), "torch")
        from slipstream.rl.nets.torch_device import device_of  # torch: only where it is used

        device_of(training.device)
    return learner


def _check_precision(training: TrainingConfig, learner: Learner) -> None:
    precision = training.precision
    if precision != "float32" and learner == "compiled":
        raise ConfigError(
            f"training.precision is {precision}, and the compiled form calculates in float32 "
            "alone. Set training.learner to torch, name a card as training.device, or leave "
            "training.precision at float32."
        )
    if precision == "tf32" and training.device == "cpu":
        raise ConfigError(
            "training.precision is tf32 and training.device is cpu: only a card has TF32. Name "
            "one, or set training.precision to float32 or bfloat16_products."
        )


def last_device(run: Run) -> str:
    """Where a run was trained last: it goes on there unless another device is asked for."""
    return str(run.provenance.get("device", run.config.training.device))


def going_on(run: Run, device: str | None = None, num_envs: int | None = None) -> RunConfig:
    """A run's config with the device and the copies per member that it goes on with.

    On a processor a card's run goes on in float32, the one precision that every form has there.

    Args:
        run: it began with its config, and its provenance says what was changed since.
        device, num_envs: as until now unless given.

    Raises:
        ConfigError: the agent's sizes do not fit so many copies.
    """
    config = run.config.with_copies(run.copies[-1]["num_envs"] if num_envs is None else num_envs)
    device = device or last_device(run)
    moved = device == "cpu" != config.training.device
    return config.with_training(device=device, **({"precision": "float32"} if moved else {}))


def note_copies(run: Run, config: RunConfig, steps: int) -> None:
    """Says and records that a run goes on with another number of copies, from so many steps on."""
    before, now = run.copies[-1]["num_envs"], config.num_envs
    if now == before:
        return
    begins = " and its replay begins empty" if config.agent.replay(now) is not None else ""
    sentence = (
        f"From step {steps:,} on this run has {now} copies per member, before that it had "
        f"{before}: {'more begin' if now > before else 'those beyond are dropped'}{begins}, and "
        "its results differ from those of any run whose copies were not changed."
    )
    note(run, sentence, copies=[*run.copies, {"steps": steps, "num_envs": now}])


def note_device(run: Run, training: TrainingConfig, steps: int) -> None:
    """Says and records that a run goes on elsewhere, from that many steps on."""
    before, device = last_device(run), training.device
    if device == before:
        return
    rounded = run.config.training.precision != "float32"
    where = f"{device} in {training.precision}" if rounded else device
    sentence = (
        f"From step {steps:,} on this run is trained on {where}, before that it was on {before}: "
        "it agrees to rounding only with a run that was never moved."
    )
    note(run, sentence, device=device)


def note(run: Run, sentence: str, **facts: Any) -> None:
    """Says a sentence about a run's results and records it with facts."""
    run.say(sentence)
    run.record(notes=[*run.provenance.get("notes", []), sentence], **facts)


def _purpose(training: TrainingConfig) -> str:
    if training.device != "cpu":
        return f"Training on {training.device}"
    if training.learner == "torch":
        return "`training.learner: torch`"
    return "Learning from images"
