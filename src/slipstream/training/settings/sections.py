"""The sections of a config file that are the same for every environment and agent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slipstream.core.bounds import Count, Seed, Share
from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.process import FaultPolicy
from slipstream.training.environments.environment import Stepping

Backend = Literal["auto", "serial", "compiled", "process"]

RETIRED = {"double_buffer": False}
"""Settings of `training` that are gone, and their defaults: files that we wrote have them. They
changed no result."""

ADDED = {"precision": "float32"}
"""Settings of `training` that files which we wrote may lack, and what those were trained with."""


class TrainingConfig(Config):
    """How much is trained, with what, and where it is kept."""

    num_envs: Count | Literal["auto"] = Field(
        "auto",
        description="copies of the environment, per member; auto: by budget and time limit",
    )
    members: Count = Field(1, description="independent learners trained together, seeds seed + m")
    total_steps: Count = Field(500_000, description="environment steps, per member")
    seed: Seed = Field(0, description="of member 0")
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = Field(
        "cpu", description="cpu, or a card that learns: cuda, cuda:1"
    )
    learner: Literal["auto", "compiled", "torch"] = Field(
        "auto", description="form of the algorithm; auto: torch for images and cards, else compiled"
    )
    precision: Literal["float32", "tf32", "bfloat16_products"] = Field(
        "float32",
        description="of hidden layers' products in the torch form; tf32: of all, on cards only",
    )
    backend: Backend | dict[Literal["try"], Annotated[list[Backend], Field(min_length=1)]] = Field(
        "auto",
        description="how copies are stepped, changes no result; auto compiles kernels; process: "
        "gym: in worker processes; {try: [process, serial]}: the first that works",
    )
    workers: Count | Literal["auto"] = Field(
        "auto", description="processes of backend process; auto: one a core, one in each shard"
    )
    on_fault: Literal["restart", "raise"] = Field(
        "restart", description="what follows when a copy or worker of backend process fails"
    )
    hang_seconds: Annotated[float, Field(gt=0)] = Field(
        60.0, description="of one call, after which backend process gives a copy up"
    )
    faults_per_minute: Count = Field(
        100,
        description="of copies and workers of backend process; more end the run where they cost "
        "more than a twentieth of its steps",
    )
    shards: Count | Literal["auto"] = Field(
        "auto", description="workers that members are dealt to; changes no result"
    )
    checkpoint_every: Share = Field(0.1, description="share of the budget between checkpoints")
    keep_last: Count = Field(2, description="checkpoints kept")
    policy_every_episodes: Count | None = Field(
        None,
        description="episodes after which member 0's policy is written beside the run, as "
        "RUN_epNNNNNN, and at the end",
    )
    out: str | None = Field(None, description="run directory; null: runs/<env>-<date>-<time>")

    @property
    def stepping(self) -> Stepping:
        """How copies of somebody else's rules are stepped."""
        return Stepping(
            workers=None if self.workers == "auto" else self.workers,
            policy=FaultPolicy(self.on_fault, self.hang_seconds, self.faults_per_minute),
            here=self.backend == "serial",
        )

    @property
    def chosen_backend(self) -> str:
        """The backend, once it is one.

        Raises:
            ConfigError: there are several to be tried.
        """
        if isinstance(self.backend, str):
            return self.backend
        names = ", ".join(self.backend["try"])
        raise ConfigError(
            f"`training.backend` has several to be tried ({names}), which `slipstream train` does; "
            "here, name one of them."
        )


class EvaluationConfig(Config):
    """How policies are scored while training."""

    every: Share = Field(0.1, description="share of the budget between validations")
    every_steps: Count | None = Field(
        None, description="instead of `every`: environment steps of a member between validations"
    )
    every_episodes: Count | None = Field(
        None, description="instead of `every`: training episodes of every member between them"
    )
    episodes: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["auto"] = Field(
        "auto",
        description="whole episodes a score is the mean of (not in markets); auto: 100, or as many "
        "as end within `share` of the budget",
    )
    share: Share = Field(
        0.2, description="of the budget's steps, that validation may take where `episodes` is auto"
    )
    actions: Literal["greedy", "drawn"] = Field(
        "greedy", description="greedy: the most likely ones; drawn: as in training"
    )
    seed: Seed = Field(1_000_003, description="the same episodes every time")
    max_steps: Count | Literal["auto"] = Field(
        "auto",
        description="cuts an episode of an environment without a time limit (not in markets); "
        "auto: 1/500 of the budget, 100 to 10,000",
    )

    @model_validator(mode="after")
    def _one_measure(self) -> EvaluationConfig:
        if self.every_steps is not None and self.every_episodes is not None:
            raise ValueError("give `every_steps` or `every_episodes`, not both")
        return self

    @property
    def most_episodes(self) -> int:
        """That a score is the mean of, however short they are."""
        return 100 if self.episodes == "auto" else self.episodes

    @property
    def drawn(self) -> bool:
        """Whether policies are scored as they act in training."""
        return self.actions == "drawn"

    @property
    def test_seed(self) -> int:
        """Of the fresh episodes that a game's result is measured on and nothing is chosen by."""
        return (self.seed + 2**32) % 2**63
