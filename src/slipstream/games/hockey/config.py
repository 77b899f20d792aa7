"""Settings of the hockey game, and what is loaded for them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from slipstream.core import config
from slipstream.core.bounds import Weight
from slipstream.games.hockey.record import BOTH, LEFT, RIGHT, Data, Params
from slipstream.games.hockey.shapes import table
from slipstream.kernels import kernel

Mode = Literal["normal", "train_shooting", "train_defense"]
Shaping = Annotated[float, Field(ge=-1e6, le=1e6)]

_SIDES = {"both": BOTH, "left": LEFT, "right": RIGHT}


class Seat(config.Config):
    """Who acts in a seat: one of these is drawn at the start of every episode, by weight."""

    agent: Weight = Field(0.0, description="whoever steps the environment")
    weak: Weight = Field(0.0, description="the original's weak bot")
    strong: Weight = Field(0.0, description="the original's strong bot")
    random: Weight = Field(0.0, description="uniform actions, new every step")
    idle: Weight = Field(0.0, description="no action")

    @model_validator(mode="after")
    def _somebody(self) -> Seat:
        if not any(self.model_dump().values()):
            raise ValueError("every weight is 0: give one of them a weight, `weak: 1`")
        return self


class Reward(config.Config):
    """Weights of what is added to the original's reward, and a factor of the sum."""

    closeness: Shaping = Field(0.0, description="times the penalty that the reward has already")
    touch: Shaping = Field(0.0, description="for catching the puck")
    direction: Shaping = Field(0.0, description="for the puck's speed towards the other goal")
    scale: Annotated[float, Field(gt=0.0, le=1e6)] = Field(1.0, description="of the sum")


class Config(config.Config):
    given: ClassVar[tuple[str, ...]] = ("mode", "keep", "time_out", "opponents", "side")

    mode: Mode | dict[Mode, Weight] = Field(
        "normal",
        description="how a game begins and how long it lasts (251 or 81 steps), or several with "
        "weights",
    )
    keep: bool = Field(True, description="a caught puck is held up to 14 steps and can be shot")
    action_fineness: int = Field(
        0, ge=0, le=100, description="discrete actions of f - 1 intensities: 8 for 2; 0: continuous"
    )
    time_out: Literal["truncated", "terminated"] = Field(
        "truncated", description="a game without a goal; the original calls it terminated"
    )
    opponents: Seat | None = Field(
        None, description="who plays against one learner; null: seats `one` and `two` are as given"
    )
    side: Literal["both", "left", "right"] = Field(
        "both", description="where the learner plays; both: drawn for every game"
    )
    reward: Reward = Field(Reward(), description="shaping")
    one: Seat = Field(Seat(agent=1.0), description="player 0, left")
    two: Seat = Field(Seat(agent=1.0), description="player 1, right")

    @field_validator("mode", mode="before")
    @classmethod
    def _as_the_original_spells_it(cls, value: Any) -> Any:
        """``TRAIN_SHOOTING``, or that member of the original's enumeration."""
        if isinstance(value, dict):
            return {cls._as_the_original_spells_it(one): weight for one, weight in value.items()}
        name = getattr(value, "name", value)
        return name.lower() if isinstance(name, str) else value

    @model_validator(mode="after")
    def _settled(self) -> Config:
        if isinstance(self.mode, dict) and not any(self.mode.values()):
            raise ValueError("every mode's weight is 0: give one of them a weight, `normal: 1`")
        alone = Seat(agent=1.0)
        if self.opponents is not None and (self.one, self.two) != (alone, alone):
            raise ValueError(
                "`opponents` says who plays against the learner, and `one` or `two` who has a "
                "seat: leave out one of the two"
            )
        if self.action_fineness == 1 and not self.keep:
            raise ValueError("`action_fineness` 1 without `keep` leaves one action: write 2")
        return self


def load(config: Config) -> kernel.Loaded:
    """The table's shapes; nothing is read."""
    modes = config.mode if isinstance(config.mode, dict) else {config.mode: 1.0}
    others = config.opponents
    if others is None and getattr(config, "self_play", None) is not None:
        others = Seat(agent=1.0)  # who shows one seat has somebody for the other one
    seats: dict[str, Any] = {
        f"{name}_{kind}": weight
        for name, seat in (("one", config.one), ("two", config.two), ("other", others))
        for kind, weight in (dict.fromkeys(Seat.model_fields, 0.0) | dict(seat or {})).items()
    }
    bots_only = others is not None and others.agent == 0.0
    params = Params(
        normal=modes.get("normal", 0.0),
        shooting=modes.get("train_shooting", 0.0),
        defense=modes.get("train_defense", 0.0),
        keep=config.keep,
        drawn=config.time_out == "terminated",
        fineness=config.action_fineness,
        players=1 if bots_only else 2,
        side=_SIDES[config.side],
        **config.reward.model_dump(),
        **seats,
    )
    return kernel.Loaded(Data(table()), {"train": (params,)})
