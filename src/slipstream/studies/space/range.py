"""Range: the values that a study may give one setting, and what Optuna is told about them."""

from __future__ import annotations

import json
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import Field, model_validator

from slipstream.core.config import Config

Number = int | float


class Range(Config):
    """Either both ends, or choices.

    What is *suggested* by Optuna and the *value* in a config differ for powers (the exponent is
    suggested) and for choices that are lists (their JSON text is).
    """

    low: Number | None = Field(None, description="smallest value")
    high: Number | None = Field(None, description="largest value")
    log: bool = Field(False, description="small values are as likely as large ones")
    step: Number | None = Field(None, gt=0, description="distance of neighbouring values")
    power_of: int | None = Field(None, ge=2, description="value = this ** (low..high)")
    choices: tuple[Any, ...] | None = Field(None, description="instead of the ends")

    @model_validator(mode="after")
    def _possible(self) -> Range:
        if self.choices is not None:
            others = self.model_fields_set - {"choices"}
            if others:
                raise ValueError(f"`choices` stands alone, without `{min(others)}`")
            if not self.choices:
                raise ValueError("`choices` is empty; list at least one value")
            texts = [encode(choice) for choice in self.choices]
            twice = [text for text in texts if [*map(repr, texts)].count(repr(text)) > 1]
            if twice:
                raise ValueError(f"`choices` lists {twice[0]} twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give `low` and `high`, or `choices`")
        if self.low > self.high:
            raise ValueError(f"`low` {self.low:g} is above `high` {self.high:g}")
        if self.power_of is not None and (
            self.log or self.step is not None or not self._integers(self.low, self.high)
        ):
            raise ValueError(
                "with `power_of`, `low` and `high` are whole exponents and that is all"
            )
        if self.log and self.step is not None:
            raise ValueError("`log` and `step` exclude each other")
        if self.log and self.low <= 0:
            raise ValueError(f"`log` needs a `low` above 0, it is {self.low:g}")
        if self.step is not None:
            steps = (self.high - self.low) / self.step
            if abs(steps - round(steps)) > 1e-6:
                raise ValueError(
                    f"`step` {self.step:g} does not lead from {self.low:g} to {self.high:g}"
                )
        return self

    @staticmethod
    def _integers(*numbers: Number | None) -> bool:
        return all(isinstance(n, int) for n in numbers if n is not None)

    def fitted(self, whole: bool) -> Range:
        """The same range for a setting that takes whole numbers only, or any numbers.

        Raises:
            ValueError: when whole numbers are needed and others given.
        """
        if self.choices is not None or self.power_of is not None:
            if whole and self.power_of is not None and self.low is not None and self.low < 0:
                raise ValueError("it takes whole numbers: `low` must be at least 0")
            return self
        if not whole:
            ends = {"low": self.low, "high": self.high, "step": self.step}
            floats = {k: float(v) for k, v in ends.items() if v is not None}
            return self.model_copy(update=floats)
        if not self._integers(self.low, self.high, self.step):
            raise ValueError("it takes whole numbers: `low`, `high` and `step` must be whole")
        return self

    @property
    def distribution(self) -> BaseDistribution:
        """What Optuna samples from."""
        if self.choices is not None:
            return CategoricalDistribution([encode(choice) for choice in self.choices])
        assert self.low is not None and self.high is not None
        if isinstance(self.low, int) and isinstance(self.high, int):
            step = int(self.step) if self.step is not None else 1
            return IntDistribution(self.low, self.high, log=self.log, step=step)
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def value(self, suggested: Any) -> Any:
        """What the config gets for what Optuna suggested.

        Raises:
            ValueError: when it is not in the range.
        """
        if self.choices is not None:
            for choice in self.choices:
                text = encode(choice)
                if text == suggested and isinstance(text, bool) == isinstance(suggested, bool):
                    return choice
            raise ValueError(f"{suggested!r} is none of the choices")
        if not self._holds(suggested):
            raise ValueError(f"{suggested!r} is outside {self.words}")
        return suggested if self.power_of is None else self.power_of**suggested

    def _holds(self, number: Number) -> bool:
        """Whether a number lies between the ends, and on a step where there are steps."""
        assert self.low is not None and self.high is not None
        step = self.step or (1 if self._integers(self.low, self.high) else None)
        places = (number - self.low) / step if step else 0.0
        return self.low <= number <= self.high and abs(places - round(places)) < 1e-8

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Values that must all be allowed: every choice, or both ends."""
        if self.choices is not None:
            return self.choices
        assert self.low is not None and self.high is not None
        if self.power_of is not None:
            return self.power_of**self.low, self.power_of**self.high
        return self.low, self.high

    @property
    def words(self) -> str:
        """For messages: ``0.1 to 0.4``, ``one of [64, 64], [128, 128]``."""
        if self.choices is not None:
            return "one of " + ", ".join(json.dumps(choice) for choice in self.choices)
        if self.power_of is not None:
            return f"{self.power_of}^{self.low} to {self.power_of}^{self.high}"
        how = " (log)" if self.log else f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{how}"

    def to_mapping(self) -> dict[str, Any]:
        """Plain values: what `Range` is made from again."""
        return self.model_dump(mode="json", exclude_defaults=True)


def encode(choice: Any) -> bool | int | float | str | None:
    """A choice as Optuna's storages keep it: lists and mappings become JSON text."""
    if isinstance(choice, (list, tuple, dict)):
        return json.dumps(choice, sort_keys=True)
    return choice  # type: ignore[no-any-return]
