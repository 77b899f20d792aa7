"""A round robin: ratings from whole games of everybody against everybody."""

import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.games.ratings import round_robin

SMALL = {
    "agent": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "net_arch": [8]},
    "training": {"num_envs": 8, "total_timesteps": 256},
    "evaluation": {"episodes": 2, "every": 1.0},
}


def trained(env, out, **training):
    return slipstream.train({**SMALL, "env": env}, out=out, report=False, **training)


def test_the_same_game_again_makes_no_rating_surer(tmp_path):
    pytest.importorskip("openskill")
    other_game = trained({"name": "tictactoe", "self_play": {}}, tmp_path / "run")
    names = [str(other_game.path), str(other_game.best.folder_of(0))]
    assert round_robin(names, 200, 0) == round_robin(names, 2, 0)
    with_random = [str(other_game.path), "random"]
    few, many = (round_robin(with_random, games, 0)[0].uncertainty for games in (2, 50))
    assert many < few


@pytest.mark.slow
def test_round_robin_ranks_the_stronger_first(tmp_path):
    pytest.importorskip("openskill")
    hockey = {"name": "hockey", "opponents": {"weak": 1.0}}
    runs = [trained(hockey, tmp_path / f"run{seed}", seed=seed) for seed in (0, 1)]
    names = [str(runs[0].path), "strong", "idle"]
    places = round_robin(names, 12, 0)
    assert places[0].name == "strong" and {p.name for p in places} == {"run0", "strong", "idle"}
    assert places == round_robin(names, 12, 0)
    with pytest.raises(ConfigError, match="two or more"):
        round_robin(names[:1], 12, 0)
    folders = [str(run.best.folder_of(0)) for run in runs]
    places = round_robin(folders, 4, 0)
    assert {p.name for p in places} == {"run0/member-000", "run1/member-000"}
    with pytest.raises(ConfigError, match="bots alone"):
        round_robin(["strong", "weak"], 12, 0)
