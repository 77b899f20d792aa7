"""The page of a run: fresh episodes, the choice of a policy, collapse and sweeps, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import slipstream
from slipstream.core.errors import CheckpointError
from slipstream.report.history import numeric_column
from slipstream.report.inputs import Curve, GameEvaluation, PolicyChoice, RunEvaluation
from slipstream.report.number_format import MeanWithError
from slipstream.report.page import write_page
from slipstream.report.run_evaluation import add_baselines, evaluate_run, random_policy
from slipstream.report.run_page import build_page, has_collapsed, run_page, verdict
from slipstream.training.environments.evaluator import run_episodes
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.episode_result import EpisodeResult
from slipstream.training.runs.run import Run

RATES = (1e-4, 1e-4, 1e-3, 1e-3)


def tracks(*returns):
    return [EpisodeResult(f"episode {j}", float(r), 10, {}) for j, r in enumerate(returns)]


def chosen(steps=400, score=500.0, last=500.0, error=1.0, **settings):
    return PolicyChoice(steps, score, last, error, settings)


def evaluation(*members, game=None, random=(20.0, 24.0), **more):
    return RunEvaluation(
        "run",
        {"fresh episodes": members},
        holdout="fresh episodes",
        random_policy=np.array(random),
        game=game,
        **more,
    )


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (-0.051, 0.0152, "-0.051 ± 0.015"),
        (487.31, 4.21, "487.3 ± 4.2"),
        (12345.6, 321.0, "12,346 ± 321"),
        (500.0, 0.0, "500.0 ± 0.0"),
        (-0.000123, 0.0000456, "-0.000123 ± 0.000046"),
        (0.05, None, "0.050"),
        (0.0, 0.0, "0.0 ± 0.0"),
    ],
)
def test_digits_follow_the_error(mean, error, text):
    assert str(MeanWithError(mean, error)) == text


def test_a_losing_game_is_not_called_even():
    """Blackjack: 0.0 on the episodes that chose the policy, -0.05 on others."""
    draw = np.random.default_rng(0)
    game = GameEvaluation((chosen(score=0.0, last=-0.1, error=0.09),), 1000, 10)
    fresh = draw.choice([-1.0, 1.0], 4000, p=[0.525, 0.475])
    page = run_page(evaluation(tracks(*fresh), game=game, random=draw.choice([-1.0, 1.0], 100)))
    assert page.headline.startswith("Mean return -0.0") and "±" in page.headline
    assert "4000 fresh episodes" in page.headline
    assert "The choice biases that figure upwards" in page.sentences[0]
    assert "step 400 of 1,000: the best of 10 validations" in page.sentences[0]


def test_collapse_is_said_in_words():
    """500 shown, and members that end at 244, 149 and 141."""
    ends = (244.0, 149.0, 141.0, 490.0)
    game = GameEvaluation(tuple(chosen(last=end, error=5.0) for end in ends), 1000, 10)
    members = [tracks(500.0, 499.0, 500.0)] * 4
    page = run_page(evaluation(*members, game=game))
    (warning,) = page.warnings
    assert "collapsed for 3 of 4 members" in warning and "members 0, 1, 2" in warning
    assert "244.0 ± 5.0, 149.0 ± 5.0, 141.0 ± 5.0" in warning
    assert any("last policy, of step 1,000, scores 244.0" in line for line in page.sentences)
    alone = run_page(evaluation(members[0], game=replace(game, chosen=game.chosen[1:2])))
    assert "collapsed: the last policy, of step 1,000, scores 149.0 ± 5.0" in alone.warnings[0]
    assert not run_page(evaluation(members[0], game=replace(game, chosen=game.chosen[3:]))).warnings


@pytest.mark.parametrize(
    ("agent", "last", "random", "fallen"),
    [
        ((500.0, 1.0), (390.0, 5.0), (20.0, 1.0), True),
        ((500.0, 1.0), (420.0, 5.0), (20.0, 1.0), False),
        ((500.0, 60.0), (390.0, 60.0), (20.0, 1.0), False),  # may be chance
        ((-100.0, 2.0), (-450.0, 5.0), (-500.0, 1.0), True),
        ((20.0, 1.0), (10.0, 1.0), (30.0, 1.0), False),  # nothing had been learned
        ((500.0, 1.0), None, (20.0, 1.0), False),
    ],
)
def test_what_counts_as_collapse(agent, last, random, fallen):
    last = None if last is None else MeanWithError(*last)
    assert has_collapsed(MeanWithError(*agent), last, MeanWithError(*random)) == fallen


@pytest.mark.parametrize(("agent", "beats"), [(20.0, False), (22.0, False), (30.0, True)])
def test_a_random_policy_must_be_beaten_beyond_chance(agent, beats):
    text = verdict([MeanWithError(agent, 1.0)], 0, MeanWithError(22.0, 1.0), 100)
    assert ("not shown to beat a random policy" in text) != beats


def test_the_headline_of_several_seeds_says_how_many_learned():
    """FrozenLake was headed 0.710 where two of three seeds had nothing."""
    seeds = [MeanWithError(mean, 0.01) for mean in (0.0, 0.71, 0.02)]
    text = verdict(seeds, 1, MeanWithError(0.015, 0.004), 100)
    assert text == (
        "Mean return 0.710 ± 0.010 on 100 fresh episodes by the best of 3 seeds; 1 of 3 beats a "
        "random policy, which gets 0.0150 ± 0.0040."
    )
    assert "; a random policy gets" in verdict(seeds[1:2] * 3, 0, seeds[0], 100)
    assert "not shown to beat" in verdict(seeds[:1] * 3, 0, seeds[0], 100)


def test_a_training_that_was_stopped_is_said_to_stand_where_it_stands():
    """ "It is also the last policy": of a run that had gone on to twice as many steps."""
    game = GameEvaluation((chosen(steps=400),), 622, 10, budget=1000)
    page = run_page(evaluation(tracks(1.0, 2.0), game=game))
    assert "Training is at step 622 of 1,000." in page.sentences
    assert "It is also the last policy." not in page.sentences
    ended = run_page(evaluation(tracks(1.0), game=replace(game, steps=1000, budget=1000)))
    assert not any("stands at step" in line for line in ended.sentences)


def test_a_sweep_shows_settings_and_averages_seeds():
    game = GameEvaluation(
        tuple(chosen(last=100.0 * m, learning_rate=rate) for m, rate in enumerate(RATES)), 1000, 10
    )
    members = [tracks(*(base + np.arange(4.0))) for base in (100, 110, 300, 330)]
    run = evaluation(*members, game=game, same_settings=False)
    swept, each = run_page(run).sections[0].tables
    assert swept.columns[:3] == ("learning_rate", "seeds", "mean")
    assert [row[:2] for row in swept.rows] == [["0.0001", "2"], ["0.001", "2"]]
    assert [row[2] for row in swept.rows] == ["106.5 ± 5.0", "316 ± 15"]
    assert swept.emphasis == 1
    assert [row[1] for row in each.rows[:4]] == ["0.0001", "0.0001", "0.001", "0.001"]
    same = evaluation(*members, game=GameEvaluation(tuple(chosen() for _ in RATES), 1000, 10))
    assert len(run_page(same).sections[0].tables) == 1


def test_cut_episodes_are_said():
    game = GameEvaluation((chosen(),), 1000, 10, longest=10)
    page = run_page(evaluation(tracks(1.0, 2.0), game=game))
    assert "2 of 2 episodes did not end" in page.warnings[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "sweep"
    slipstream.train(
        "cartpole",
        members=4,
        num_envs=8,
        total_timesteps=4096,
        overrides={"agent.learning_rate": list(RATES), "evaluation.episodes": 20},
        out=path,
        report=False,
    )
    return Run.open(path)


def test_a_run_is_reported_on_fresh_episodes(trained, tmp_path):
    run = evaluate_run(trained)
    assert list(run.tracks) == ["fresh episodes"]
    for member, result in enumerate(trained.result["members"]):
        mean = np.mean([track.episode_return for track in run.tracks["fresh episodes"][member]])
        assert mean == result["test_score"]
        one = run.game.chosen[member]
        assert (one.steps, one.score) == (result["best_steps"], result["best_score"])
        assert one.last == result["last_score"]
        assert one.settings == {"learning_rate": RATES[member]}
    assert run.game.validations == 10 and len(run.game.sampled) == 20
    assert run.game.steps == trained.result["progress"]["steps"]
    text = write_page(build_page(run), tmp_path).read_text(encoding="utf-8")
    for part in ("20 fresh episodes", "Settings, averaged over seeds", "0.0001", "drawn"):
        assert part in text, part
    drawn = {path.stem for path in tmp_path.glob("figures/*.png")}
    assert drawn == {"learning_curve", "episode_returns", "episodes"}


def test_words_among_a_table_s_numbers_are_refused():
    table = {"won": [0.25, None, 1.0], "lost": [0.5, "abc", None]}
    assert np.array_equal(numeric_column(table, "won"), [0.25, np.nan, 1.0], equal_nan=True)
    with pytest.raises(CheckpointError, match="'abc' in the column `lost`"):
        numeric_column(table, "lost")


def test_the_chosen_step_is_marked_on_the_curve(trained):
    run = evaluate_run(trained)
    from slipstream.report.history import draw_learning_curves

    places = [(one.steps, one.score) for one in run.game.chosen]
    figure = draw_learning_curves(run.curves, places, run.member)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "chosen and shown" in labels and "chosen, other members" in labels
    offsets = [tuple(o) for c in figure.axes[0].collections for o in c.get_offsets().tolist()]
    assert places[run.member] in offsets


def test_a_random_policy_keeps_to_the_mask():
    """In examples/kernels/shop.py what the mask forbids would overfill the store."""
    from pathlib import Path

    shop = Path(__file__).parents[4] / "examples" / "kernels" / "shop.py"
    environment = resolve_environment(str(shop), {})
    assert environment.spec.has_action_mask
    env = environment.make_eval_envs("test", 4, 1, "serial")
    seen = []

    def act(now):
        from slipstream.kernels.env_checker import random_actions

        actions = random_actions(environment.spec, 4, np.random.default_rng(len(seen)), now.mask)
        seen.append(now.mask[np.arange(4), actions[:, 0]].all())
        return actions

    run_episodes(env, act, 4, 1, record=False)
    assert all(seen) and len(random_policy(environment, "test", "serial")) == 100


def test_tracks_alone_have_a_page(tmp_path):
    game = resolve_environment("cartpole", {})

    def act(seen):
        return (seen.obs[:, 2:3] + 0.5 * seen.obs[:, 3:4] > 0).astype(np.int64)

    env = game.make_eval_envs("test", 5, 1, "serial")
    curve = Curve("evaluation", np.array([1.0, 2.0]), np.array([[1.0], [2.0]]))
    found = {"test": run_episodes(env, act, 5, seed=1)}
    run = add_baselines(game, RunEvaluation("balance", found, curves=(curve,)), backend="serial")
    text = write_page(build_page(run), tmp_path).read_text(encoding="utf-8")
    assert "Mean return 500.0 ± 0.0 on 5 fresh episodes" in text and "random policy gets" in text
