"""Configs refuse what nobody reads, and say what was probably meant."""

from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import Field, ValidationError, field_validator

from slipstream.core.config import Config, validate
from slipstream.core.errors import ConfigError
from slipstream.core.text import closest_match


class Fees(Config):
    spread_pips: Annotated[float, Field(ge=0)] = 0.0
    commission: float = 0.0


class Market(Config):
    folder: str
    fees: Fees | None = None
    windows: tuple[Fees, ...] = ()

    @field_validator("folder")
    @classmethod
    def _named(cls, value):
        if value == "nowhere":
            raise ValueError("a folder that exists.")
        if value == "c:":
            raise ValueError(f"a folder, not {value!r}.")
        return value


def test_valid():
    market = validate(Market, {"folder": "prices", "fees": {"spread_pips": 1}})
    assert market.fees == Fees(spread_pips=1.0)
    with pytest.raises(ValidationError):
        market.folder = "other"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"folder": "x", "foldr": 1}, "`env.foldr` is not a known key; did you mean `folder`?"),
        ({"folder": "x", "zzz": 1}, "known keys: fees, folder, name, windows."),
        ({"folder": "x", "fees": {"zzz": 1}}, "known keys: commission, spread_pips."),
        (
            {"folder": "x", "fees": {"spread_pip": 1}},
            "`env.fees.spread_pip` is not a known key; did you mean `spread_pips`?",
        ),
        (
            {"folder": "x", "windows": [{"comission": 1}]},
            "`env.windows.0.comission` is not a known key; did you mean `commission`?",
        ),
        ({}, "`env.folder` is required and missing."),
        ({"folder": "x", "fees": {"spread_pips": -1}}, "`env.fees.spread_pips` must be at least 0"),
        ({"folder": "x", "fees": {"spread_pips": -1}}, ", got -1."),
        ({"folder": "x", "fees": {"commission": float("nan")}}, "finite number"),
        ({"folder": "nowhere"}, "`env.folder`: a folder that exists (got 'nowhere')."),
        ({"folder": "c:"}, "`env.folder`: a folder, not 'c:'."),
    ],
)
def test_message(values, message):
    with pytest.raises(ConfigError) as error:
        validate(Market, values, where="env")
    assert message in str(error.value)
    assert str(error.value).count("c:") < 2  # what came is said once


def test_all_problems_in_one_paragraph():
    with pytest.raises(ConfigError) as error:
        validate(Market, {"foldr": 1, "fees": {"commission": "dear"}})
    text = str(error.value)
    assert "`folder` is required" in text and "`foldr`" in text and "`fees.commission`" in text
    assert "\n" not in text


def test_nearest():
    assert closest_match("gama", ["gamma", "lambda"]) == "gamma"
    assert closest_match("qqq", ["gamma", "lambda"]) is None


def test_a_union_complains_once_in_the_users_words():
    from slipstream.training.settings.config import TrainingConfig

    with pytest.raises(ConfigError) as caught:
        validate(TrainingConfig, {"num_envs": 0}, "training")
    message = str(caught.value)
    assert message.count("`training.num_envs`") == 1
    assert "literal" not in message and "constrained" not in message


class Mixed(Config):
    rate: float | tuple[float, ...] = 0.0
    count: int = 1
    auto: int | Literal["auto"] = "auto"
    name: str | None = None
    limits: dict[str, float] | None = None
    flag: bool = False
    either: bool | int = 0
    anything: Any = None
    fees: Fees | None = None


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"rate": True}, "rate"),
        ({"rate": [0.1, False]}, "rate"),
        ({"rate": np.True_}, "rate"),
        ({"count": True}, "count"),
        ({"auto": True}, "auto"),
        ({"name": True}, "name"),
        ({"limits": {"A": True}}, "limits"),
        ({"fees": {"commission": True}}, "fees.commission"),
    ],
)
def test_a_truth_value_is_no_number(values, place):
    with pytest.raises(ConfigError, match=rf"`env.{place}` must be .*, not true or false"):
        validate(Mixed, values, where="env")


def test_truth_values_where_they_belong():
    given = {"flag": True, "either": True, "anything": [True], "rate": [1, 2], "count": 3}
    mixed = validate(Mixed, given)
    assert mixed.flag is True and mixed.either is True and mixed.anything == [True]
    assert mixed.rate == (1.0, 2.0) and mixed.count == 3


class Lists(Config):
    names: tuple[str, ...] = ()
    weights: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    "values", [{"names": ["a"] * 5_001}, {"weights": {str(i): 1.0 for i in range(5_001)}}]
)
def test_a_list_or_mapping_has_a_bounded_number_of_entries(values):
    with pytest.raises(ConfigError, match="has 5,001 entries, and 5,000 are the most") as error:
        validate(Lists, values)
    assert len(str(error.value)) < 500


def test_a_message_names_some_of_many_problems():
    with pytest.raises(ConfigError, match="There are 80 more problems") as error:
        validate(Lists, {f"unknown{i}": 1 for i in range(100)})
    assert str(error.value).count("is not a known key") == 20


def test_a_message_has_a_bounded_length():
    assert len(str(ConfigError("one two " * 10_000))) < 31_000
