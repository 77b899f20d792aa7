"""EvaluationResult: means, intervals, table and data frame of evaluated episodes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import stats

from slipstream.core.errors import ResourceError
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.evaluation_result import EvaluationResult


def episodes(returns, metrics=None):
    return [
        EpisodeResult(f"episode {j}", value, 10 + j, metrics or {"lost": 1.0 + j}, number=j)
        for j, value in enumerate(returns)
    ]


def t_interval(values):
    return pytest.approx(
        stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    )


SPLITS = {
    "validation": [episodes([1.0, 2.0, 6.0]), episodes([4.0, 4.0, 7.0])],
    "test": [episodes([1.0, 2.0, 3.0]), episodes([5.0, 7.0, 9.0])],
}


def test_the_interval_of_one_member_is_over_its_episodes():
    result = EvaluationResult.from_episodes({"test": [episodes([1.0, 2.0, 6.0])]})
    assert result.split == "test" and result.mean_return == 3.0
    assert result.interval == t_interval([1.0, 2.0, 6.0]) and result.interval_over == "episodes"
    assert result.splits["test"].episodes[2].episode_return == 6.0
    assert result.episodes == result.best.episodes and result.best.mean_length == 11.0
    assert result.splits["test"].metrics == {"lost": 2.0}


def test_the_interval_of_several_members_is_over_members():
    result = EvaluationResult.from_episodes(SPLITS, (0, 3), 3)
    assert result.split == "test" and result.mean_return == 4.5  # not that of the validation
    assert result.interval == t_interval([2.0, 7.0]) and result.interval_over == "members"
    assert result.members[0].interval == t_interval([1.0, 2.0, 3.0])
    assert result.best.member == 3 and result.best.mean_return == 7.0
    assert [one.episode_return for one in result.episodes] == [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]
    assert result.splits["validation"].mean_return == 4.0
    assert result.by_split() == SPLITS


def test_without_a_test_split_the_figures_are_those_of_the_last_one():
    splits = {"train": SPLITS["test"], "window": SPLITS["validation"]}
    result = EvaluationResult.from_episodes(splits, (0, 1))
    assert result.split == "window" and result.mean_return == result.splits["window"].mean_return


def test_symbols_of_one_backtest_have_no_interval():
    one = EvaluationResult.from_episodes({"test": SPLITS["test"][:1]}, independent=False)
    assert one.interval is None and one.interval_over is None and "n/a" in str(one)
    several = EvaluationResult.from_episodes(SPLITS, (0, 1), independent=False)
    assert several.interval_over == "members" and several.members[0].interval is None
    assert EvaluationResult.from_episodes({"test": [episodes([1.0])]}).interval is None


def test_lost_episodes_are_left_out_of_the_mean():
    result = EvaluationResult.from_episodes({"test": [episodes([1.0, np.nan, 3.0])]})
    assert result.mean_return == 2.0 and result.interval == t_interval([1.0, 3.0])


def test_it_prints_as_a_table_with_a_short_repr():
    result = EvaluationResult.from_episodes(SPLITS, (0, 3), 3)
    lines = str(result).splitlines()
    assert lines[0].split() == (
        ["split", "member", "episodes", "mean", "return", "95", "%", "interval", "mean", "length"]
    )
    assert [line.split()[:4] for line in lines[1:-1]] == [
        ["validation", "0", "3", "3"],
        ["validation", "3", "3", "5"],
        ["validation", "all", "6", "4"],
        ["test", "0", "3", "2"],
        ["test", "3", "3", "7"],
        ["test", "all", "6", "4.5"],
    ]
    assert "Best member by validation: 3." in lines[-1]
    assert len({len(line) for line in lines[:3]}) == 1  # aligned
    low, high = result.interval
    assert repr(result) == (
        "<EvaluationResult: split test, members 2, episodes 6, mean return 4.5, "
        f"95 % interval {low:.4g} to {high:.4g}, over members>"
    )
    assert repr(result.best).startswith("<MemberResult: member 3, episodes 3, mean return 7, ")
    assert "array" not in repr(result.episodes[0])
    alone = EvaluationResult.from_episodes({"test": SPLITS["test"][:1]})
    assert len(str(alone).splitlines()) == 2
    backtest = EvaluationResult.from_episodes({"test": [episodes([1.0], {"total_return": 0.25})]})
    assert str(backtest).splitlines()[1].endswith("25.0 %")


def test_to_frame_has_one_row_per_episode():
    frame = EvaluationResult.from_episodes(SPLITS, (0, 3), 3).to_frame()
    assert frame.columns == (
        ["split", "member", "episode", "name", "episode_return", "length", "lost"]
    )
    assert frame.height == 12
    assert frame.row(11) == ("test", 3, 2, "episode 2", 9.0, 12, 3.0)


def test_to_frame_without_polars_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    result = EvaluationResult.from_episodes(SPLITS, (0, 1))
    with pytest.raises(ResourceError, match=r"requires polars.*-m pip install polars"):
        result.to_frame()
