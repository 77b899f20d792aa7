"""Default opponents of a game whose config names none."""

from pathlib import Path

import pytest

import slipstream
from slipstream.cli.main import main
from slipstream.core.errors import ConfigError, KernelError
from slipstream.training.settings.config import resolve

PENNIES = str(Path(__file__).parents[4] / "examples/kernels/pennies.py")
SMALL = {
    "agent.n_steps": 8,
    "agent.batch_size": 32,
    "agent.net_arch": [8],
    "training.num_envs": 4,
    "training.total_timesteps": 32,
    "evaluation.episodes": 2,
    "evaluation.every": 1.0,
}


@pytest.mark.parametrize(
    ("name", "key", "who"),
    [
        pytest.param("hockey", "opponents", {"weak": 1.0, "strong": 3.0}, marks=pytest.mark.slow),
        ("tictactoe", "self_play", {"sampling": "latest", "snapshot_iterations": 1}),
    ],
)
def test_a_kernel_suggests_somebody_and_the_run_says_so(tmp_path, name, key, who):
    said = []
    run = slipstream.train(
        name, out=tmp_path / "run", overrides=SMALL, log=said.append, report=False
    )
    written = run.config.env_settings[key]
    assert {k: written[k] for k in who} == who
    assert any(f"`env.{key}: {{" in sentence for sentence in said)
    # Who is named stays.
    again = resolve(run.config)
    assert again.with_opponent() == (again, None)


def test_a_game_of_ones_own_meets_its_own_past():
    """`make_vec` steps both players."""
    config, sentence = resolve(PENNIES).with_opponent()
    assert config.env_settings["self_play"]["opponents"] == {"snapshots": 1.0}
    assert "snapshots of the learner" in sentence
    assert slipstream.make_vec(PENNIES, 3).spec.players == 2


def test_who_has_a_seat_by_other_keys_is_not_overruled():
    """`player1` and `player2` name who acts: what is missing then is asked for."""
    config = resolve("hockey", {"env.player2": {"agent": 1, "weak": 1}})
    assert config.with_opponent() == (config, None)
    with pytest.raises(ConfigError, match="training requires one"):
        slipstream.train(config, report=False)


@pytest.mark.parametrize(
    "constant",
    [
        '["random"]',
        "{}",
        '{"self_play": "random"}',
        '{"self_plai": {}}',
        '{"self_play": {"sampeling": "latest"}}',
    ],
)
def test_what_a_kernel_suggests_must_be_a_part_of_env(tmp_path, constant):
    path = tmp_path / "pennies.py"
    path.write_text(f"{Path(PENNIES).read_text()}\n\nOPPONENTS = {constant}\n")
    with pytest.raises(KernelError, match=r"OPPONENTS in .*pennies\.py.* Write OPPONENTS = "):
        resolve(str(path)).with_opponent()


def test_init_writes_them(capsys):
    with pytest.raises(SystemExit):
        main(["init", "hockey"])
    text = capsys.readouterr().out
    assert "the config names no opponent" in text and "strong: 3.0" in text
