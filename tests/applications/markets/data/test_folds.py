"""Folds: cases written out by hand, and what must hold for any size."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.config import validate
from slipstream.core.errors import ConfigError, DataError
from slipstream.core.timeline import FoldPlan
from slipstream.markets.folds import FoldSplit, fold_metadata, make_folds


def rows_of(ranges: tuple[tuple[int, int], ...]) -> set[int]:
    return {row for low, high in ranges for row in range(low, high)}


def test_six_folds_of_four_groups_by_hand() -> None:
    # 50 bars: 10 held out, 2 embargo before them, 38 left: groups of 9, 10, 9, 10.
    split = make_folds(50, FoldPlan(), embargo=2, purge=1, min_train=1)
    assert split.development == (0, 38) and split.holdout == (40, 50)
    assert split.groups == ((0, 9), (9, 19), (19, 28), (28, 38))
    a, b, c, d = split.groups
    assert [(fold.groups, fold.test, fold.train) for fold in split.folds] == [
        ((0, 1), (a, b), ((21, 38),)),
        ((0, 2), (a, c), ((11, 18), (30, 38))),
        ((0, 3), (a, d), ((11, 27),)),
        ((1, 2), (b, c), ((0, 8), (30, 38))),
        ((1, 3), (b, d), ((0, 8), (21, 27))),
        ((2, 3), (c, d), ((0, 18),)),
    ]
    assert split.paths == ((0, 0, 1, 2), (1, 3, 3, 4), (2, 4, 5, 5))


def test_k_fold_by_hand() -> None:
    split = make_folds(40, FoldPlan(method="kfold", groups=3, holdout=0.25), 3, 2, min_train=1)
    assert split.holdout == (30, 40) and split.groups == ((0, 9), (9, 18), (18, 27))
    assert [fold.train for fold in split.folds] == [
        ((12, 27),),
        ((0, 7), (21, 27)),
        ((0, 16),),
    ]
    assert split.paths == ((0, 1, 2),)


def test_walk_forward_by_hand() -> None:
    split = make_folds(50, FoldPlan(method="walk_forward", groups=3), 2, min_train=1)
    assert split.development == (0, 38)
    assert split.groups == ((9, 19), (19, 28), (28, 38))  # the first nine bars are trained on only
    assert [fold.train for fold in split.folds] == [((0, 8),), ((0, 18),), ((0, 27),)]
    assert [fold.test for fold in split.folds] == [((9, 19),), ((19, 28),), ((28, 38),)]
    assert split.paths == ((0, 1, 2),)


def test_groups_side_by_side_leave_no_sliver_between_them() -> None:
    plan = FoldPlan(groups=5, test_groups=3, holdout=0.1)
    split = make_folds(1010, plan, embargo=9, min_train=1)
    fold = next(fold for fold in split.folds if fold.groups == (1, 2, 3))
    assert split.development == (0, 900) and fold.train == ((0, 179), (729, 900))


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, FoldPlan, int, int]:
    method = draw(st.sampled_from(["cpcv", "kfold", "walk_forward"]))
    groups = draw(st.integers(2, 7))
    values = {"method": method, "groups": groups, "holdout": draw(st.floats(0.05, 0.5))}
    if method == "cpcv":
        values["test_groups"] = draw(st.integers(1, groups - 1))
    return (
        draw(st.integers(60, 900)),
        FoldPlan(**values),
        draw(st.integers(0, 40)),
        draw(st.integers(0, 5)),
    )


@given(cases())
def test_what_holds_for_any_size(case: tuple[int, FoldPlan, int, int]) -> None:
    rows, plan, embargo, purge = case
    try:
        split = make_folds(rows, plan, embargo, purge, min_train=1)
    except DataError:
        return
    low, high = split.development
    assert split.holdout == (rows - round(plan.holdout * rows), rows)
    assert split.holdout[0] - high == embargo
    sizes = [stop - start for start, stop in split.groups]
    assert max(sizes) - min(sizes) <= 1
    assert all(before[1] == after[0] for before, after in pairwise(split.groups))
    assert split.groups[-1][1] == high
    assert split.groups[0][0] == 0 or plan.method == "walk_forward"
    for fold in split.folds:
        test = rows_of(fold.test)
        assert fold.test == tuple(split.groups[number] for number in fold.groups)
        # By brute force: a row is trained on unless a tested row lies too near before or behind.
        allowed = set()
        for row in range(low, high):
            near = range(row - embargo, row + purge + 1)
            if test.isdisjoint(near):
                allowed.add(row)
        if plan.method == "walk_forward":
            allowed = {row for row in allowed if row < min(test)}
        assert rows_of(fold.train) == allowed
        for before, after in pairwise(fold.train):
            assert before[1] < after[0] and rows_of(((before[1], after[0]),)) & test
    _check_paths(split, plan)


def _check_paths(split: FoldSplit, plan: FoldPlan) -> None:
    expected = {"cpcv": plan.test_groups * comb(plan.groups, plan.test_groups) // plan.groups}.get(
        plan.method, 1
    )
    assert len(split.paths) == expected
    used: Counter[tuple[int, int]] = Counter()
    for path in split.paths:
        assert len(path) == plan.groups
        for group, fold in enumerate(path):
            assert group in split.folds[fold].groups
            used[fold, group] += 1
    tested = [(k, group) for k, fold in enumerate(split.folds) for group in fold.groups]
    assert used == Counter(tested)
    if plan.method == "cpcv":
        wanted = list(combinations(range(plan.groups), plan.test_groups))
        assert [fold.groups for fold in split.folds] == wanted


@pytest.mark.parametrize(
    ("rows", "plan", "embargo", "message"),
    [
        (100, FoldPlan(), 90, r"100 bars they leave 20 and 0: load more bars, or shorten"),
        (5, FoldPlan(), 0, r"at least 2 bars to hold out .* they leave 1"),
        (20, FoldPlan(groups=16), 0, r"tested group .* at least 2 bars; 16 groups .* have 1: use"),
        (1000, FoldPlan(), 50, r"at least 201 bars .* embargo of 50 bars, a segment has 136"),
        (1000, FoldPlan(method="kfold", groups=2), 400, r"a segment has 0: the 2 groups"),
        (1000, FoldPlan(method="walk_forward"), 0, r"a segment has 159"),
    ],
)
def test_too_few_bars(rows: int, plan: FoldPlan, embargo: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_folds(rows, plan, embargo)


def test_the_shortest_timeline_that_will_do() -> None:
    # Four groups of 201 + 1 + 50 bars, an embargo, and a fifth of the whole.
    assert make_folds(1323, FoldPlan(), 50).groups[0] == (0, 252)
    with pytest.raises(DataError, match="a segment has 200"):
        make_folds(1320, FoldPlan(), 50)  # the third group has 251 bars


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"groups": 4, "test_groups": 4}, "test_groups"),
        ({"method": "kfold", "test_groups": 2}, "test_groups"),
        ({"method": "walk_forward", "test_groups": 2}, "test_groups"),
        ({"groups": 1}, "groups"),
        ({"holdout": 0.0}, "holdout"),
        ({"holdout": 1.0}, "holdout"),
        ({"method": "purged"}, "method"),
    ],
)
def test_impossible_plans(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(FoldPlan, values, "folds")


@pytest.mark.parametrize("method", ["cpcv", "kfold", "walk_forward"])
def test_a_plan_survives_its_own_text(method: str) -> None:
    plan = FoldPlan.model_validate({"method": method})
    assert plan.test_groups == (2 if method == "cpcv" else 1)
    assert FoldPlan.model_validate_json(plan.model_dump_json()) == plan


def test_facts_are_json_in_seconds() -> None:
    split = make_folds(50, FoldPlan(), embargo=2, min_train=1)
    time = 1_000 + 300 * np.arange(50, dtype=np.int64)
    time[20:] += 7_200  # a gap
    facts = json.loads(json.dumps(fold_metadata(split, FoldPlan(), time, 300)))
    assert facts["groups"][0] == [1_000, 1_000 + 9 * 300]
    assert facts["groups"][2] == [1_000 + 19 * 300, 8_200 + 28 * 300]
    assert facts["holdout"] == [8_200 + 40 * 300, 8_200 + 50 * 300]
    assert facts["group_bars"] == [9, 10, 9, 10] and facts["holdout_bars"] == 10
    assert facts["folds"][1]["train_bars"] == 7 + 8
    assert facts["paths"] == [[0, 0, 1, 2], [1, 3, 3, 4], [2, 4, 5, 5]]


@pytest.mark.peers
@pytest.mark.parametrize(("groups", "tested"), [(4, 2), (5, 2), (6, 3), (8, 4)])
def test_the_same_folds_as_skfolio(groups: int, tested: int) -> None:
    selection = pytest.importorskip(
        "skfolio.model_selection", reason="skfolio is no dependency; install it to compare"
    )
    embargo, purge = 7, 3
    plan = FoldPlan(groups=groups, test_groups=tested, holdout=0.1)
    rows = 50 * groups
    split = make_folds(round((rows + embargo) / 0.9), plan, embargo, purge, min_train=1)
    assert split.development == (0, rows)
    # Theirs leaves out purge + embargo after a tested group, ours the embargo.
    theirs = selection.CombinatorialPurgedCV(
        n_folds=groups, n_test_folds=tested, purged_size=purge, embargo_size=embargo - purge
    )
    pairs = list(theirs.split(np.zeros((rows, 1))))
    assert len(pairs) == len(split.folds) and theirs.n_test_paths == len(split.paths)
    for fold, (train, tests) in zip(split.folds, pairs, strict=True):
        assert rows_of(fold.train) == set(train.tolist())
        assert [set(test.tolist()) for test in tests] == [rows_of((r,)) for r in fold.test]
    assert split.paths == _their_paths(theirs, groups)


def _their_paths(theirs: object, groups: int) -> tuple[tuple[int, ...], ...]:
    """skfolio says, for each fold and each of its tested groups, the path it belongs to."""
    ids = theirs.get_path_ids()
    chosen = combinations(range(groups), ids.shape[1])
    paths = [[-1] * groups for _ in range(ids.max() + 1)]
    for fold, tested in enumerate(chosen):
        for group, path in zip(tested, ids[fold], strict=True):
            paths[path][group] = fold
    return tuple(tuple(path) for path in paths)
