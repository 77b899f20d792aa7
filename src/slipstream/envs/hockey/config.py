"""Settings of the hockey game, and what is loaded for them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from slipstream.core import config, kernel
from slipstream.envs.hockey.record import NORMAL, TRAIN_DEFENSE, TRAIN_SHOOTING, Data, Params
from slipstream.envs.hockey.shapes import table

_MODES = {
    "normal": (NORMAL, 250),
    "train_shooting": (TRAIN_SHOOTING, 80),
    "train_defense": (TRAIN_DEFENSE, 80),
}


class Seat(config.Config):
    """Who acts in a seat: one of these is drawn at the start of every episode, by weight."""

    agent: float = Field(0.0, ge=0.0, le=1e6, description="whoever steps the environment")
    weak: float = Field(0.0, ge=0.0, le=1e6, description="the original's weak bot")
    strong: float = Field(0.0, ge=0.0, le=1e6, description="the original's strong bot")
    random: float = Field(0.0, ge=0.0, le=1e6, description="uniform actions, new every step")
    idle: float = Field(0.0, ge=0.0, le=1e6, description="no action")

    @model_validator(mode="after")
    def _somebody(self) -> Seat:
        if not any(self.model_dump().values()):
            raise ValueError("every weight is 0: give one of them a weight, `agent: 1`")
        return self


class Config(config.Config):
    mode: Literal["normal", "train_shooting", "train_defense"] = Field(
        "normal", description="how a game begins and how long it lasts (251 or 81 steps)"
    )
    keep: bool = Field(True, description="a caught puck is held up to 14 steps and can be shot")
    action_fineness: int = Field(
        0, ge=0, le=100, description="discrete actions of f - 1 intensities: 8 for 2; 0: continuous"
    )
    time_out: Literal["truncated", "terminated"] = Field(
        "truncated", description="a game without a goal; the original calls it terminated"
    )
    one: Seat = Field(Seat(agent=1.0), description="player 1, left")
    two: Seat = Field(Seat(agent=1.0), description="player 2, right")


def load(config: Config) -> kernel.Loaded:
    """The table's shapes; nothing is read."""
    mode, limit = _MODES[config.mode]
    seats = {
        f"{name}_{kind}": weight
        for name, seat in (("one", config.one), ("two", config.two))
        for kind, weight in seat.model_dump().items()
    }
    params = Params(
        mode=mode,
        keep=config.keep,
        limit=limit,
        drawn=config.time_out == "terminated",
        fineness=config.action_fineness,
        **seats,
    )
    return kernel.Loaded(Data(table()), {"train": (params,)})
