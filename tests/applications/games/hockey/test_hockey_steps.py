"""L1 and L2: every step of the kernel equals the oracle's, in open loop from the start.

As long as an episode has not differed, both stand in one state, hidden parts included: so each of
its steps is a step from a recorded state (L1), and an episode that ends without a difference is
identical to the end (L2).
"""

import hockey_world
import pytest


def test_short_interpreted():
    """The short form; compiled code equals this by the contract's test."""
    count = hockey_world.Count()
    for seed, (mode, kind) in enumerate(
        [
            ("normal", "bots"),
            ("normal", "chase"),
            ("train_shooting", "hug"),
            ("train_defense", "bots"),
            ("train_defense", "chase"),
        ]
    ):
        game = hockey_world.Game(mode, backend="serial")
        count.play(game, seed, kind, steps=90)
    assert count.whole == count.episodes, str(count)
    assert {"free", "puck-racket", "stopped within the step"} <= set(count.steps)


def test_without_keep_mode():
    count = hockey_world.Count()
    count.play(hockey_world.Game("normal", keep=False, backend="serial"), 1, "chase", steps=60)
    assert count.whole == 1, str(count)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_whole(capsys):
    """At least 1,000 episodes and 200,000 steps, all modes and kinds of play, compiled."""
    count = hockey_world.Count()
    for mode in hockey_world.MODES:
        game = hockey_world.Game(mode)
        for kind in hockey_world.PLAY:
            for seed in range(200 if mode == "normal" else 100):
                count.play(game, seed, kind)
    with capsys.disabled():
        print(f"\n{sum(count.steps.values())} classed steps\n{count}")
    assert count.whole >= 0.99 * count.episodes, str(count)
    wrong = {kind: count.wrong.get(kind, 0) / n for kind, n in count.steps.items()}
    assert wrong["free"] == 0.0
    assert max(wrong.values()) <= 0.001, str(count)
    expected = {"racket-wall, 1 points", "racket-wall, 2 points", "puck-wall", "sensor", "held"}
    assert expected | {"two contacts or more"} <= set(count.steps)
