"""`train_single_run`: arguments, names, files and keys of the hockey project's trainer."""

import csv
import inspect
import json
import re

import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.experience.replay.plan import updates_due
from slipstream.settings.config import resolve

CONFIG = {
    "curriculum": {
        "phases": [
            {
                "name": "shooting",
                "episodes": 4,
                "environment": {"mode": "TRAIN_SHOOTING"},
                "opponent": {"type": "none"},
                "reward_shaping": {"N": 1, "K": 2, "TOUCH_START": 2.0},
            },
            {
                "name": "game",
                "episodes": 3,
                "environment": {"mode": "NORMAL"},
                "opponent": {"type": "basic_strong"},
            },
        ]
    },
    "hyperparameters": {"learning_rate": 5e-4, "batch_size": 64},
    "training": {"reward_scale": 0.5, "checkpoint_save_freq": 3},
    "agent": {"type": "PPO", "hyperparameters": {"hidden_dim": [8, 8]}},
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    base = tmp_path_factory.mktemp("results")
    file = base / "config.json"
    file.write_text(json.dumps(CONFIG))
    result = slipstream.train_single_run(
        file, base, verbose=False, eval_freq_steps=1_000, eval_num_games=3, num_envs=4
    )
    return base, result


# Arguments in their order, and keys of what is returned, as that project has them.
ARGUMENTS = [
    *("config_path", "base_output_dir", "run_name", "verbose", "eval_freq_steps"),
    *("eval_num_games", "eval_weak_opponent", "device", "checkpoint_path", "num_envs"),
]
KEYS = [
    *("run_name", "final_reward", "mean_reward", "total_episodes", "total_steps"),
    *("total_gradient_steps", "evaluation_results"),
]
FOLDERS = ["configs", "csvs", "models", "plots"]


def test_the_call_takes_their_arguments():
    assert list(inspect.signature(slipstream.train_single_run).parameters) == ARGUMENTS


def test_what_is_left_open_is_theirs():
    def defaults(call):
        return [p.default for p in inspect.signature(call).parameters.values()][1:6]

    single = defaults(slipstream.train_single_run)
    assert single == ["results/runs", None, True, 800_000, 200]
    assert defaults(slipstream.train_run) == ["results/runs", None, True, None, 100]


def test_a_device_by_its_number_is_a_card(tmp_path, monkeypatch):
    seen = {}

    def train(target, **given):
        seen.update(given["overrides"])
        raise ConfigError("enough")

    monkeypatch.setattr("slipstream.adapters.hockey_project.single_run.api.train", train)
    for device, meant in ((0, "cuda:0"), (1, "cuda:1"), ("cuda", "cuda"), (None, "cpu")):
        with pytest.raises(ConfigError, match="enough"):
            slipstream.train_run(CONFIG, tmp_path, "named", False, device=device)
        assert seen["training.device"] == meant
    for device in ("", "gpu", True):
        with pytest.raises(ConfigError, match="device"):
            slipstream.train_run(CONFIG, tmp_path, "named", False, device=device)


def test_keys_and_counts_of_the_result(outcome):
    base, result = outcome
    assert list(result) == KEYS
    assert sorted(p.name for p in base.iterdir() if p.is_dir()) == FOLDERS
    assert all(result[key] is not None for key in KEYS)
    assert isinstance(result["final_reward"], float) and isinstance(result["total_steps"], int)
    assert result["total_episodes"] >= 7
    assert result["total_gradient_steps"] == 4 * result["total_steps"] // 64
    one = result["evaluation_results"][0]
    assert one["wins"] + one["losses"] + one["draws"] == 3 and one["win_rate"] == one["wins"] / 3


def test_files_and_names(outcome):
    base, result = outcome
    name = result["run_name"]
    assert re.fullmatch(r"run_lr5e04_bs64_h8_8_[0-9a-f]{8}_\d{8}_\d{6}_vec4", name)
    written = json.loads((base / "configs" / f"{name}.json").read_text())
    assert written["env"]["opponents"]["weak"] == 1.0  # what evaluations meet
    assert [p["episodes"] for p in written["curriculum"]["phases"]] == [4, 3]
    assert (base / "plots" / f"{name}.png").stat().st_size > 1_000
    with (base / "csvs" / f"{name}_evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("step", "episode", "win_rate", "mean_reward", "std_reward", "wins", "losses", "draws")
    ]
    stem = f"{name}_ep{result['total_episodes']:06d}"
    facts = json.loads((base / "models" / f"{stem}_metadata.json").read_text())
    assert facts["episode"] == result["total_episodes"] and facts["phase_index"] == 2
    assert (base / "models" / stem / "manifest.json").exists()
    policy = slipstream.load_policy(base / "models" / name)
    assert policy.act([0.0] * 18).shape == (4,)


def test_a_finished_run_is_gone_on_with_from_its_directory(outcome):
    base, result = outcome
    run = base / "models" / result["run_name"]
    again = slipstream.train_run(CONFIG, base, None, False, checkpoint_path=run)
    assert again["total_steps"] == result["total_steps"]


def test_their_sections_are_read_as_a_mapping_too():
    config = resolve(CONFIG, {"env.opponents": {"strong": 1.0}})
    assert config.env_settings["opponents"]["strong"] == 1.0
    assert [phase.name for phase in config.curriculum.phases] == ["shooting", "game"]


@pytest.mark.parametrize(
    "agent", [{"type": "DDDQN", "hyperparameters": {"hidden_dim": [8]}}, {"type": "SAC"}]
)
def test_more_environments_are_no_fewer_updates(agent):
    """Theirs made one training call for each step of all environments together."""
    values = {**CONFIG, "agent": agent, "training": {"warmup_steps": 1000, "updates_per_step": 1}}
    due = {}
    for copies in (1, 16):
        config = resolve(values, {"training.num_envs": copies})
        due[copies] = updates_due(config.agent.replay(copies).schedule, 17_000)
    assert due == {1: 16_000, 16: 16_000}


def test_another_environment_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"slipstream\.train|opponents"):
        slipstream.train_single_run({"env": "cartpole"}, tmp_path, verbose=False)
