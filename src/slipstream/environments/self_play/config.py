"""The section `env.self_play` of a kernel in which two players act."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slipstream.core.bounds import Count, Share, Weight
from slipstream.core.config import Config, searched

SNAPSHOTS = "snapshots"
RANDOM = "random"

Opponents = Annotated[dict[str, Weight], Field(min_length=1)]


class SelfPlayConfig(Config):
    """The agent is shown one seat, drawn for every episode; somebody else acts in the other one.

    An opponent is called by a name: `snapshots` (frozen earlier weights of the learner itself),
    `random` (any action that is allowed), the directory of a run, the folder of a policy, or a file
    that ends in .onnx. Players of a game's own are named in the kernel's keys.
    """

    opponents: Opponents = Field(
        {SNAPSHOTS: 1.0},
        description="who is met in training, name: weight; drawn at the start of every episode",
    )
    evaluation: Opponents | None = Field(
        None,
        description="who is met in evaluations; null: as the kernel suggests, else random",
    )
    slots: Annotated[int, Field(ge=1, le=256)] = Field(
        8,
        description="snapshots kept; the next one takes the place of the oldest",
        json_schema_extra=searched(choices=[4, 8, 16, 32], by_default=False),
    )
    snapshot_iterations: Count | None = Field(
        10,
        description="iterations between two snapshots; null: they do not count",
        json_schema_extra=searched(1, 100, log=True, by_default=False),
    )
    snapshot_episodes: Count | None = Field(
        None, description="episodes between two snapshots, the iteration filled up; null: as above"
    )
    snapshot_win_rate: Share | None = Field(
        None,
        description="a snapshot is taken once this share of points was won since the last (a draw "
        "is half a point); null: never for that",
        json_schema_extra=searched(0.55, 0.9, by_default=False),
    )
    gate_episodes: Count = Field(
        100, description="decided and drawn episodes that such a share needs at least"
    )
    sampling: Literal["uniform", "latest", "pfsp"] = Field(
        "uniform",
        description="which snapshot is met; pfsp: by how often it is beaten",
        json_schema_extra=searched(choices=["uniform", "latest", "pfsp"], by_default=False),
    )
    pfsp_weighting: Literal["hard", "even"] = Field(
        "hard",
        description="hard: (1 - w)^2 for a win rate w; even: w (1 - w)",
        json_schema_extra=searched(choices=["hard", "even"], by_default=False),
    )
    deterministic: bool = Field(
        False, description="opponents take their most likely action, else they draw it"
    )

    @property
    def by_results(self) -> bool:
        """Whether something follows from who won."""
        return self.sampling == "pfsp" or self.snapshot_win_rate is not None


DEFAULTS = SelfPlayConfig.model_validate({})
