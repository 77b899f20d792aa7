"""Wrong arguments of public functions are refused in one paragraph."""

from __future__ import annotations

import numpy as np
import pytest

import slipstream

PATHS = ("evaluate", "load_policy", "resume", "status", "stop", "best_response", "check")
PATHS += ("write_report", "write_model_card", "evaluate_games", "resume_study", "report_study")


@pytest.mark.parametrize("name", ["train", "tune", *PATHS])
@pytest.mark.parametrize("value", [3, 2.5, None, b"x", object()])
def test_something_else_than_a_path(name, value):
    with pytest.raises(
        slipstream.SlipstreamError, match=r"got|is not an environment|no study|cannot"
    ):
        getattr(slipstream, name)(value)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: slipstream.make_vec(3), "make_vec: missing a required argument: 'num_envs'"),
        (lambda: slipstream.make_vec(3, 2), "3 is not an environment"),
        (lambda: slipstream.make_vec("cartpole", "x"), "`num_envs` must be int, got 'x'"),
        (lambda: slipstream.tune("cartpole", hours="x"), "`hours` must be float or None, got 'x'"),
        (lambda: slipstream.train("cartpole", out=3), "`out` must be str, Path or None, got 3"),
        (lambda: slipstream.load_policy("a", "b"), "`member` must be int or None, got 'b'"),
        (lambda: slipstream.Run.open(3), "Run.open: `path` must be str or path, got 3"),
        (lambda: slipstream.evaluate("a", dta="b"), "unexpected keyword argument 'dta'"),
    ],
)
def test_an_argument_of_another_type_is_named(call, problem):
    with pytest.raises(slipstream.SlipstreamError, match="(?s)" + problem) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_it_is_a_type_error_too():
    with pytest.raises(TypeError):
        slipstream.load_policy(3)


def test_numbers_of_numpy_are_taken():
    with slipstream.make_vec("cartpole", np.int64(2), seed=np.uint32(1)) as env:
        assert len(env.reset()) == 2
