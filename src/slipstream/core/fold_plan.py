"""How a study divides a timeline: the plan of its folds, and the names of its splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from slipstream.core.bounds import Count
from slipstream.core.config import Config

# Parts of a study's timeline: its folds are fold0, fold1, ...; `development` is what they divide,
# `holdout` what comes after it, `everything` both. They are trained on as `PART/train`, a fold is
# tested as `foldI/test`, and the hold-out as `holdout`.
FOLD, DEVELOPMENT, EVERYTHING, HOLDOUT = "fold", "development", "everything", "holdout"


def train_split(part: str) -> str:
    """Name of the split that trains on a part: ``fold3/train``, ``development/train``."""
    return f"{part}/train"


def test_split(fold: str) -> str:
    """Name of the split that tests a fold: ``fold3/test``."""
    return f"{fold}/test"


class FoldPlan(Config):
    """A plan of how a timeline is divided.

    Attributes:
        method: `cpcv` tests every choice of `test_groups` of the groups and trains on the others;
            `kfold` tests each group once and trains on the others; `walk_forward` cuts one more
            group off the start, which is only trained on, tests each of the others once and trains
            on everything before it.
        groups: tested groups, of equal bar counts.
        test_groups: groups that a fold tests; 1 except for `cpcv`.
        holdout: share of the timeline, its last part, that no fold may touch.
    """

    method: Literal["cpcv", "kfold", "walk_forward"] = "cpcv"
    groups: Annotated[int, Field(ge=2, le=64)] = 4
    test_groups: Count = 2
    holdout: Annotated[float, Field(gt=0.0, le=0.9)] = 0.2

    @model_validator(mode="before")
    @classmethod
    def _one_group_at_a_time(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("method", "cpcv") != "cpcv":
            return {"test_groups": 1, **values}
        return values

    @model_validator(mode="after")
    def _possible(self) -> FoldPlan:
        if self.method == "cpcv" and self.test_groups >= self.groups:
            raise ValueError(
                f"`test_groups` must be smaller than `groups` ({self.groups}), or nothing is left "
                f"to train on; it is {self.test_groups}"
            )
        if self.method != "cpcv" and self.test_groups != 1:
            raise ValueError(
                f"`test_groups` must be 1 with `method: {self.method}`, it is {self.test_groups}; "
                "`method: cpcv` tests several groups a fold"
            )
        return self
