"""Errors suggest nothing that the command line given excludes."""

from __future__ import annotations

import pytest

from slipstream.cli.error_reporting import adapt_suggestions

TRAIN = ["train", "cartpole"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (TRAIN, "give --device cpu"),
        ([*TRAIN, "--device", "cuda:0"], "give --device cpu"),
        ([*TRAIN, "--gpu", "0"], "leave out --gpu 0"),
        ([*TRAIN, "--gpu=3"], "leave out --gpu=3"),
        (["resume", "runs/x", "--gpu", "1"], "leave out --gpu 1"),
        ([*TRAIN, "--set", "training.device=cuda"], "leave out --set training.device=cuda"),
        (["best-response", "runs/x"], "give --set training.device=cpu"),
    ],
)
def test_the_way_back_to_the_cpu_fits_the_command_line(arguments, said):
    assert (
        adapt_suggestions("There is none; or give --device cpu.", arguments)
        == f"There is none; or {said}."
    )


def test_another_gpu_is_named_by_the_option_that_was_used():
    text = "each worker sees its own card as cuda:0: give --device cuda:0."
    assert adapt_suggestions(text, [*TRAIN, "--gpu", "1"]).endswith("give --gpu 0.")
    assert adapt_suggestions(text, [*TRAIN, "--device", "cuda:1"]) == text
    setting = adapt_suggestions(text, [*TRAIN, "--set=training.device=cuda:1"])
    assert setting.endswith("give --set training.device=cuda:0.")


@pytest.mark.parametrize(
    "given", [("--gpu", "7"), ("--set", "training.device=cuda:7")], ids=["option", "setting"]
)
def test_a_command_with_a_gpu_that_is_not_there_works_once_that_is_left_out(slipstream, given):
    words = [*TRAIN, "--num-envs", "8", "--total-timesteps", "256", "--no-report", "--out", "run"]
    words += ["--set", "agent.n_steps=16", "--set", "agent.batch_size=32"]
    result = slipstream(*words, *given)
    assert result.code == 2 and f"leave out {' '.join(given)}" in result.err
    assert "--device" not in result.err
    assert slipstream(*words).code == 0
