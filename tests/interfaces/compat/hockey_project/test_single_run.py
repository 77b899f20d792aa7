"""`train_single_run`: arguments, names, files and keys of the hockey project's trainer."""

import copy
import csv
import inspect
import itertools
import json
import re

import numpy as np
import pytest

import slipstream
from slipstream.compat.hockey_project.single_run import CURRICULUM, train_run, train_single_run
from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.rl.experience.replay.replay_config import updates_due
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve


def torch_has_card():
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


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
    result = train_single_run(
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
    assert list(inspect.signature(train_single_run).parameters) == ARGUMENTS


def test_what_is_left_open_is_theirs():
    def defaults(call):
        return [p.default for p in inspect.signature(call).parameters.values()][1:6]

    single = defaults(train_single_run)
    assert single == ["results/runs", None, True, 800_000, 200]
    assert defaults(train_run) == ["results/runs", None, True, None, 100]


def test_a_device_by_its_number_is_a_card(tmp_path, monkeypatch):
    seen = {}

    def train(target, **given):
        seen.update(given["overrides"])
        raise ConfigError("enough")

    monkeypatch.setattr("slipstream.compat.hockey_project.single_run.api.train", train)
    for device, meant in ((0, "cuda:0"), (1, "cuda:1"), ("cuda", "cuda"), (None, "cpu")):
        with pytest.raises(ConfigError, match="enough"):
            train_run(CONFIG, tmp_path, "named", False, device=device)
        assert seen["training.device"] == meant
    for device in ("", "gpu", True):
        with pytest.raises(ConfigError, match="device"):
            train_run(CONFIG, tmp_path, "named", False, device=device)


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
    assert facts["episode"] == result["total_episodes"]
    assert facts["phase_index"] == 1 and facts["phase_episode"] < facts["episode"]
    assert (base / "models" / stem / "manifest.json").exists()
    policy = slipstream.load_policy(base / "models" / name)
    assert policy.act([0.0] * 18).shape == (4,)


def test_policies_bear_the_episode_at_which_they_were_written(outcome):
    """One past every multiple of `checkpoint_save_freq`, one at the end, and the best one."""
    base, result = outcome
    models, name = base / "models", result["run_name"]
    episodes = Run.open(models / name).metrics()["episodes"]
    written = [int(path.name[-6:]) for path in sorted(models.glob(f"{name}_ep??????"))]
    pairs = itertools.pairwise([0.0, *episodes])
    due = [int(now) for before, now in pairs if now // 3 > before // 3]
    assert written == sorted({*due, int(episodes[-1])}) and len(written) >= 2
    first, last = (
        slipstream.load_policy(models / f"{name}_ep{n:06d}") for n in (written[0], written[-1])
    )
    assert not np.array_equal(first.parameters.flat, last.parameters.flat)
    best = slipstream.load_policy(models / f"{name}_best")
    chosen = slipstream.load_policy(models / name)
    assert np.array_equal(best.parameters.flat, chosen.parameters.flat)
    states = np.random.default_rng(1).normal(size=(5, 18))
    assert np.array_equal(best.act_batch(states, deterministic=True), best.act(states))
    assert not np.array_equal(best.act_batch(states), best.act(states))
    for path in models.glob(f"{name}_ep*_metadata.json"):
        assert json.loads(path.read_text())["phase_index"] in (0, 1)


@pytest.mark.skipif(torch_has_card(), reason="needs a machine without a card")
def test_a_card_that_is_not_there_is_refused_in_words(tmp_path):
    """Their examples say `device="cuda:1"`; ours leave it out."""
    with pytest.raises(SlipstreamError, match=r"cuda:1.*(cpu|PyTorch)") as caught:
        train_single_run(CONFIG, tmp_path, verbose=False, device="cuda:1", num_envs=4)
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("models/*"))


def test_our_own_curriculum_is_trained_where_theirs_is_not_there(tmp_path, monkeypatch, capsys):
    seen = []

    def train(target, **given):
        seen.append(target)
        raise ConfigError("enough")

    monkeypatch.setattr("slipstream.compat.hockey_project.single_run.api.train", train)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="enough"):
        train_single_run("configs/curriculum_simple.json", verbose=False, num_envs=4)
    assert seen == [CURRICULUM] and "Using slipstream's" in capsys.readouterr().err
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/curriculum_simple.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ConfigError, match="enough"):
        train_single_run("configs/curriculum_simple.json", verbose=False, num_envs=4)
    assert seen[1:] == ["configs/curriculum_simple.json"]
    with pytest.raises(SlipstreamError, match=r"other\.json"):
        train_single_run("other.json", verbose=False)


@pytest.mark.slow
def test_bots_and_ones_own_past_in_one_curriculum(tmp_path):
    """A run of ours and snapshots are met in the phase that names them, bots alone before it."""
    values = copy.deepcopy(CONFIG)
    values["curriculum"]["phases"] = [
        {**values["curriculum"]["phases"][1], "episodes": 4},
        {
            **values["curriculum"]["phases"][1],
            "episodes": 4,
            "opponent": {"type": "self_play", "checkpoint": None},
        },
    ]
    result = train_single_run(
        values, tmp_path, "past", verbose=False, eval_freq_steps=None, eval_num_games=2, num_envs=4
    )
    run = Run.open(tmp_path / "models" / "past")
    assert run.config.env_settings["self_play"]["opponents"] == {"snapshots": 1.0}
    assert result["total_episodes"] >= 8
    phases = [int(phase) for phase in run.metrics()["phase"]]
    assert phases[0] == 0 and phases[-1] == 2 and 1 in phases
    assert float(run.metrics()["snapshots"][-1]) >= 1.0


def test_a_finished_run_is_gone_on_with_from_its_directory(outcome):
    base, result = outcome
    run = base / "models" / result["run_name"]
    again = train_run(CONFIG, base, None, False, checkpoint_path=run)
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
        train_single_run({"env": "cartpole"}, tmp_path, verbose=False)


@pytest.mark.parametrize("name", ["old_ep001000.pt", "old_ep001000_metadata.json"])
def test_a_file_of_one_policy_is_no_checkpoint_to_go_on_from(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be resumed") as caught:
        train_run(CONFIG, tmp_path, None, False, checkpoint_path=tmp_path / name)
    assert str(tmp_path / "models" / "RUN") in str(caught.value)
