"""JSON of the hockey project as it is: what becomes of each key, and what is refused."""

import copy
import json

import pytest

from slipstream.compat.hockey_project.config import recognizes, to_sections
from slipstream.compat.hockey_project.single_run import CURRICULUM
from slipstream.core.errors import ConfigError
from slipstream.core.storage import yaml_file
from slipstream.training.environments.curriculum import check_curriculum
from slipstream.training.environments.factory import make_environment
from slipstream.training.settings.config import ignored_keys, read_config, resolve

# Its `curriculum_simple`, with the shaping of an earlier version in the first phase.
SIMPLE = {
    "curriculum": {
        "phases": [
            {
                "name": "shooting",
                "episodes": 8000,
                "environment": {"mode": "TRAIN_SHOOTING", "keep_mode": True},
                "opponent": {"type": "none", "weight": 1.0},
                "reward_shaping": {
                    "N": 600,
                    "K": 400,
                    "CLOSENESS_START": 20.0,
                    "TOUCH_START": 15.0,
                    "CLOSENESS_FINAL": 1.5,
                    "TOUCH_FINAL": 1.0,
                    "DIRECTION_FINAL": 2.0,
                },
            },
            {
                "name": "defense",
                "episodes": 8000,
                "environment": {"mode": "TRAIN_DEFENSE", "keep_mode": True},
                "opponent": {"type": "basic_weak"},
                "reward_shaping": None,
            },
            {
                "name": "mixed",
                "episodes": 15000,
                "environment": {
                    "mixture": [
                        {"mode": "NORMAL", "weight": 0.9},
                        {"mode": "TRAIN_DEFENSE", "weight": 0.1},
                    ]
                },
                "opponent": {
                    "type": "weighted_mixture",
                    "opponents": [
                        {"type": "basic_weak", "weight": 0.8},
                        {"type": "basic_strong", "weight": 0.2},
                    ],
                },
            },
            {
                "name": "strong",
                "episodes": 40000,
                "environment": {"mode": "NORMAL"},
                "opponent": {"type": "basic_strong"},
            },
        ]
    },
    "hyperparameters": {"learning_rate": 5e-4, "batch_size": 512},
    "training": {
        "max_episode_steps": 500,
        "updates_per_step": 1,
        "warmup_steps": 80000,
        "reward_scale": 0.5,
        "checkpoint_save_freq": 7100,
    },
    "agent": {
        "type": "DDDQN",
        "hyperparameters": {
            "hidden_dim": [256, 512, 256],
            "target_update_freq": 2000,
            "eps": 1.0,
            "eps_min": 0.1,
            "eps_decay": 0.9995,
            "action_fineness": 3,
            "use_huber_loss": True,
            "reward_clip": None,
        },
    },
}


def changed(path, value):
    values = copy.deepcopy(SIMPLE)
    at = values
    *before, last = path
    for key in before:
        at = at[key]
    at[last] = value
    return values


def test_every_key_has_its_place(tmp_path):
    file = tmp_path / "curriculum_simple.json"
    file.write_text(json.dumps(SIMPLE))
    sections = read_config(file)
    assert sections["env"] == {
        "name": "hockey",
        "puck_hold": True,
        "num_action_levels": 3,
        "opponents": {"weak": 1.0},
    }
    agent = sections["agent"]
    assert agent["name"] == "dqn" and agent["dueling"] and agent["double"]
    assert (agent["learning_rate"], agent["batch_size"], agent["net_arch"]) == (
        5e-4,
        512,
        [256, 512, 256],
    )
    assert (agent["learning_starts"], agent["utd_ratio"]) == (80_000, 1.0)
    assert (agent["target_update_interval"], agent["max_grad_norm"]) == (2000, 1.0)
    # 0.9995 ** 4604 < 0.1: so many games of 81 steps
    assert agent["exploration_steps"] == 4605 * 81 and agent["exploration_final_eps"] == 0.1
    most = 8000 * 81 + 8000 * 81 + 15000 * 251 + 40000 * 251
    most += 5 * 1024 * 251  # games that are under way where a phase changes
    assert sections["training"] == {
        **{"total_timesteps": most, "checkpoint_every": 0.1, "policy_every_episodes": 7100}
    }
    first, second, third, fourth = sections["curriculum"]["phases"]
    assert first["env"] == {
        "mode": {"train_shooting": 1.0},
        "opponents": {"idle": 1.0},
        "reward": {"scale": 0.5},
    }
    assert first["anneal"] == {
        "reward.closeness": {"start": 20.0, "final": 1.5, "hold": 600, "over": 400},
        "reward.touch": {"start": 15.0, "final": 1.0, "hold": 600, "over": 400},
        "reward.direction": {"start": 0.0, "final": 2.0, "hold": 600, "over": 400},
    }
    assert (second["env"]["opponents"], second["anneal"]) == ({"weak": 1.0}, {})
    assert third["env"]["mode"] == {"normal": 0.9, "train_defense": 0.1}
    assert third["env"]["opponents"] == {"weak": 0.8, "strong": 0.2}
    assert fourth["episodes"] == 40000 and fourth["env"]["opponents"] == {"strong": 1.0}


def test_other_agents():
    sac = changed(("agent",), {"type": "SAC", "hyperparameters": {"tau": 0.005, "discount": 0.98}})
    sections = to_sections(sac)
    assert sections["agent"]["name"] == "sac" and sections["agent"]["tau"] == 0.005
    assert sections["env"]["num_action_levels"] == 0 and sections["agent"]["gamma"] == 0.98
    assert to_sections(changed(("agent",), {"type": "PPO"}))["agent"]["batch_size"] == 512
    slow = changed(("training", "train_freq"), 4)
    assert to_sections(slow)["agent"]["utd_ratio"] == 0.25


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("surprise",), 1, "surprise"),
        (("training", "warmup"), 1, "warmup"),
        (("curriculum", "phases"), [], "`phases` is empty"),
        (("curriculum", "phases", 0, "environment", "mode"), "SHOOTING", "mode"),
        (("curriculum", "phases", 0, "environment", "keep_mode"), False, "keep_mode"),
        (("curriculum", "phases", 0, "environment"), {}, "mixture"),
        (("curriculum", "phases", 3, "opponent", "type"), "archive", "type: self_play"),
        (
            ("curriculum", "phases", 3, "opponent"),
            {"type": "self_play", "checkpoint": "old.pt"},
            "old.pt.*another program.*null for snapshots",
        ),
        (("curriculum", "phases", 3, "reward_bonus"), {"N": 100}, "3.reward_bonus"),
        (("curriculum", "phases", 3, "opponent", "type"), "clever", "type"),
        (("training", "max_episode_steps"), 100, "251"),
        (("agent", "type"), "CrossQ", "one of DDDQN.*got CrossQ"),
        (("agent", "hyperparameters", "reward_clip"), 1.0, "reward_clip"),
        (("agent", "checkpoint_path"), "old.pt", "checkpoint_path"),
        (("agent", "hyperparameters", "momentum"), 0.9, "momentum"),
        (("agent", "hyperparameters", "eps_decay"), 1.5, "eps_decay"),
    ],
)
def test_what_nobody_reads_is_refused(path, value, match):
    assert recognizes(SIMPLE)
    with pytest.raises(ConfigError, match=match):
        to_sections(changed(path, value))


def test_self_play_is_ones_own_past_or_a_run_of_ours():
    own = {"type": "self_play", "weight": 0.5}
    bots = {"type": "basic_strong", "weight": 1.5}
    mixed = {"type": "weighted_mixture", "opponents": [own, bots]}
    sections = to_sections(changed(("curriculum", "phases", 3, "opponent"), mixed))
    assert sections["env"]["self_play"] == {"opponents": {"snapshots": 0.5}}
    assert sections["env"]["opponents"] == {"agent": 1.0}
    phases = [phase["env"]["opponents"] for phase in sections["curriculum"]["phases"]]
    assert phases[3] == {"agent": 0.5, "strong": 1.5}
    # Of bots alone: two players act from outside all the same, one of them practically never.
    assert phases[1] == {"weak": 1.0, "agent": 1e-12}
    named = {"type": "self_play", "checkpoint": "runs/first"}
    sections = to_sections(changed(("curriculum", "phases", 3, "opponent"), named))
    assert sections["env"]["self_play"] == {"opponents": {"runs/first": 1.0}}
    assert sections["curriculum"]["phases"][3]["env"]["opponents"] == {"agent": 1.0}
    assert "self_play" not in to_sections(SIMPLE)["env"]
    both = changed(("curriculum", "phases", 3, "opponent"), named)
    both["curriculum"]["phases"][2]["opponent"] = {"type": "self_play"}
    with pytest.raises(ConfigError, match=r"one pool of opponents.*same `checkpoint`"):
        to_sections(both)
    both["curriculum"]["phases"][2]["opponent"] = {"type": "self_play", "checkpoint": "a.pt"}
    with pytest.raises(ConfigError, match=r"`checkpoint: a.pt` is a network of another program"):
        to_sections(both)


def test_a_mixture_within_a_mixture_is_drawn_in_turn():
    """Three of four games against the mixture, in it by its own weights."""
    inner = {
        **{"type": "weighted_mixture", "weight": 3.0},
        "opponents": [
            {"type": "self_play", "weight": 1.0},
            {"type": "basic_weak", "weight": 2.0},
            {"type": "basic_strong", "weight": 3.0},
        ],
    }
    run = {"type": "self_play", "checkpoint": "runs/first", "weight": 0.5}
    outer = {
        "type": "weighted_mixture",
        "opponents": [inner, {"type": "basic_strong", "weight": 0.5}, run],
    }
    sections = to_sections(changed(("curriculum", "phases", 3, "opponent"), outer))
    assert sections["curriculum"]["phases"][3]["env"]["opponents"] == {
        **{"agent": 1.0, "weak": 1.0, "strong": 2.0}
    }
    assert sections["env"]["self_play"] == {"opponents": {"snapshots": 0.5, "runs/first": 0.5}}
    twice = [{"mode": "NORMAL", "weight": weight} for weight in (0.25, 0.5)]
    sections = to_sections(changed(("curriculum", "phases", 2, "environment"), {"mixture": twice}))
    assert sections["curriculum"]["phases"][2]["env"]["mode"] == {"normal": 0.75}
    for nobody in ([], [{**inner, "weight": 0.0}]):
        with pytest.raises(ConfigError, match="has no weight above 0"):
            to_sections(changed(("curriculum", "phases", 2, "opponent", "opponents"), nobody))


def test_our_own_curriculum_is_read_and_complete():
    config = resolve(CURRICULUM)
    assert config.agent_name == "td3" and config.agent.net_arch == (128, 128)
    assert config.env_settings["self_play"]["opponents"] == {"snapshots": 0.5}
    assert [phase.name for phase in config.curriculum.phases] == [
        *("shooting", "defense", "game", "self-play")
    ]
    check_curriculum(
        config.curriculum, make_environment("hockey", config.env_settings), config.env_settings
    )


# What the project's published files say, at commits ab33f0e and 62aca2c and at its newest, 5341212:
# phases (mode, opponents, episodes), learning rate, batch, the training block, the agent.
DRILLS = [("TRAIN_SHOOTING", "none", 8000), ("TRAIN_DEFENSE", "basic_weak", 8000)]
HALVES = {"basic_weak": 0.5, "basic_strong": 0.5}
TRAINING = {"max_episode_steps": 500, "updates_per_step": 1}
HALF = {**TRAINING, "reward_scale": 0.5}
DDDQN = {"action_fineness": 3, "eps": 1, "eps_min": 0.1, "eps_decay": 0.9995}
DDDQN |= {"hidden_dim": [256, 512, 256], "target_update_freq": 2000, "use_huber_loss": True}
SMALL = {"hidden_dim": [256, 256], "target_update_freq": 50, "eps": 1, "eps_min": 0.1}
SMALL["eps_decay"] = 0.9995
SAC = {"discount": 0.99, "tau": 0.005, "alpha": 0.2, "learn_alpha": True}
TD3 = {"learning_rate": 5e-4, "max_action": 1.0, "discount": 0.99999, "tau": 0.005}
TD3 |= {"expl_noise": 0.1, "policy_noise": 0.2, "noise_clip": 0.5, "policy_freq": 2}
TD3 |= {"batch_size": 1024, "priority_replay": True, "normalize_obs": True}
REDQ = {"polyak": 0.995, "utd_ratio": 20, "num_Q": 10, "latent_dim": [256, 256]}
STEPWISE = {"checkpoint_frequency": 100_000, "eval_frequency": 100_000}
GRID = {"learning_rate": [1e-4, 5e-4, 1e-3, 1e-5], "batch_size": [256, 512, 1024, 2048]}


def project_file(phases, rate, batch, training, kind, agent, **more):
    """The blocks of such a file."""

    def opponent(met):
        if isinstance(met, str):
            return {"type": met, "weight": 1.0}
        mixed = [{"type": name, "weight": weight} for name, weight in met.items()]
        return {"type": "weighted_mixture", "checkpoint": None, "opponents": mixed}

    rows = [
        {
            **{"name": f"{mode} {i}", "episodes": episodes, "opponent": opponent(met)},
            **{"environment": {"mode": mode, "keep_mode": True}, "reward_shaping": None},
        }
        for i, (mode, met, episodes) in enumerate(phases)
    ]
    return {
        "curriculum": {"phases": rows},
        "hyperparameters": {"learning_rate": rate, "batch_size": batch},
        "training": training,
        "agent": {"type": kind, "hyperparameters": agent},
        **more,
    }


def drills(weak, episodes, last=40_000):
    mixed = ("NORMAL", {"basic_weak": weak, "basic_strong": 1 - weak}, episodes)
    return [*DRILLS, mixed, ("NORMAL", "basic_strong", last)]


WARM = {**HALF, "warmup_steps": 80_000, "checkpoint_save_freq": 5000}
NORMAL = [("NORMAL", "basic_strong", 10_000)]
SHOOT = [("TRAIN_SHOOTING", "none", 100)]
TEST = {**HALF, "warmup_steps": 1000, "checkpoint_save_freq": 1000}
RANKED = {**SMALL, "use_per": True, "per_alpha": 0.6, "per_beta": 0.4}
PUBLISHED = {
    "ab33f0e base": project_file(drills(0.55, 20_000), 5e-4, 512, WARM, "DDDQN", DDDQN),
    "ab33f0e simple": project_file(drills(0.8, 15_000), 5e-4, 512, WARM, "DDDQN", DDDQN),
    "ab33f0e sac": project_file(
        [(*DRILLS[0][:2], 400), (*DRILLS[1][:2], 300), ("NORMAL", "basic_weak", 500)],
        *(3e-4, 256, {**HALF, "warmup_steps": 20_000, "checkpoint_save_freq": 100}),
        *("SAC", {**SAC, "noise": "pink", "max_episode_steps": 500}),
    ),
    "62aca2c simple": project_file(
        [(*DRILLS[0][:2], 1000), (*DRILLS[1][:2], 1000)],
        *(1e-4, 256, {**TRAINING, "reward_scale": 0.1, "warmup_steps": 400}, "DDDQN"),
        {"hidden_dim": [256] * 3, "target_update_freq": 50, "eps": 0.3, "eps_min": 0.05},
    ),
    "newest sac": project_file(
        *(NORMAL, 1e-3, 256, {**TRAINING, **STEPWISE, "warmup_steps": 10_000}),
        *("SAC", {**SAC, "noise": "normal", "max_episode_steps": 250}),
    ),
    "newest simple": project_file(
        *([("NORMAL", HALVES, 100_000)], 5e-4, 1024, WARM, "SAC"),
        {**SAC, "noise": "pink", "max_episode_steps": 500},
    ),
    "newest td3": project_file([("NORMAL", HALVES, 100_000)], 5e-4, 1024, WARM, "TD3", TD3),
    "newest test": project_file(SHOOT, 5e-4, 256, TEST, "DDDQN", SMALL),
    "newest test_per": project_file(SHOOT, 5e-4, 256, TEST, "DDQN_PER", RANKED),
}
REFUSED = {
    "newest redq_td3": (
        project_file([("NORMAL", HALVES, 10_000)], 3e-4, 1024, TRAINING, "REDQTD3", REDQ),
        "`agent.type` must be one of .*got REDQTD3",
    ),
    "newest sac_archive": (
        project_file([*NORMAL, ("NORMAL", "archive", 200_000)], 1e-3, 256, HALF, "SAC", SAC),
        r"archive \(`curriculum.phases.1.opponent`\).*type: self_play",
    ),
    "newest tdmpc2": (
        project_file(
            *([*NORMAL, ("NORMAL", {"basic_strong": 0.25, "self_play": 0.75}, 7000)], 3e-4, 512),
            *("TrainingConfig(warmup_steps=5000)", "TDMPC2", {"vmin": -10.0}),
        ),
        "`agent.type` must be one of .*got TDMPC2",
    ),
    "hyperparameter_base": (
        {"hyperparameters": GRID, "training": HALF, "agent": {"type": "DDDQN"}},
        "`hyperparameters.learning_rate`.* lists of values.*slipstream tune.*`curriculum`",
    ),
    "newest models/redqtd3": (
        {"agent": {"type": "REDQTD3", "hyperparameters": REDQ}, "hyperparameters": {}},
        "REDQTD3.*`curriculum` is missing",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read_as_they_are(name):
    file = PUBLISHED[name]
    config = resolve(file, {})
    assert config.agent.learning_rate == file["hyperparameters"]["learning_rate"]
    assert config.agent.batch_size == file["hyperparameters"]["batch_size"]
    phases = config.curriculum.phases
    assert [p.episodes for p in phases] == [p["episodes"] for p in file["curriculum"]["phases"]]
    assert all(phase.clear_replay for phase in phases)  # theirs begins a phase with an empty one


@pytest.mark.parametrize("name", REFUSED)
def test_published_files_that_mean_nothing_here_name_what(name):
    file, match = REFUSED[name]
    assert recognizes(file)
    with pytest.raises(ConfigError, match=match):
        resolve(file, {})


def test_keys_of_published_agents_become_ours():
    sac = resolve(PUBLISHED["newest sac"], {})
    assert sac.evaluation.every_steps == 100_000 and sac.agent.ent_coef == "auto"
    assert sac.training.checkpoint_every == pytest.approx(1e5 / (1e4 * 251), rel=1e-9)
    assert sac.agent.init_ent_coef == 1.0  # `alpha` is read where it is not learned
    fixed = copy.deepcopy(PUBLISHED["newest sac"])
    fixed["agent"]["hyperparameters"]["learn_alpha"] = False
    assert resolve(fixed, {}).agent.ent_coef == 0.2
    td3 = resolve(PUBLISHED["newest td3"], {}).agent
    assert td3.prioritised and td3.observation_normalization and td3.gamma == 0.99999
    assert (td3.exploration_noise, td3.target_policy_noise, td3.target_noise_clip) == (
        0.1,
        0.2,
        0.5,
    )
    ranked = resolve(PUBLISHED["newest test_per"], {}).agent
    assert ranked.prioritised and (ranked.priority_exponent, ranked.importance_exponent) == (
        *(0.6, 0.4),
    )


def test_what_a_file_leaves_open_is_theirs():
    bare = {
        "curriculum": {"phases": SIMPLE["curriculum"]["phases"][:1]},
        "agent": {"type": "DDDQN"},
    }
    phase = bare["curriculum"]["phases"][0]
    config = resolve({**bare, "curriculum": {"phases": [{**phase, "reward_shaping": {}}]}}, {})
    agent = config.agent
    assert (agent.target_update_interval, agent.exploration_final_eps, agent.max_grad_norm) == (
        50,
        0.01,
        1.0,
    )
    assert (agent.learning_rate, agent.batch_size, agent.net_arch) == (1e-4, 256, (256, 256))
    assert agent.learning_starts == 400 and not agent.observation_normalization
    (only,) = config.curriculum.phases
    assert only.env["reward"] == {"scale": 0.1}
    assert only.anneal["reward.closeness"].model_dump() == {
        **{"start": 20.0, "final": 1.5, "hold": 600, "over": 400}
    }
    constant = copy.deepcopy(SIMPLE)
    constant["agent"]["hyperparameters"] = {"eps": 0.2, "eps_decay": None}
    agent = resolve(constant, {}).agent
    assert (agent.exploration_initial_eps, agent.exploration_final_eps) == (0.2, 0.2)


def test_what_is_done_otherwise_than_a_file_says_is_said(tmp_path):
    told = ignored_keys(SIMPLE)
    assert "a phase ends with the iteration that reaches its episodes" in told
    assert "Huber" not in told
    assert told.startswith("`slipstream.compat.hockey_project` reads this config. ")
    assert "the loss is Huber's" in ignored_keys(PUBLISHED["newest test"])
    file = tmp_path / "sac.json"
    file.write_text(json.dumps(PUBLISHED["ab33f0e sac"]))
    assert "instead of pink" in ignored_keys(file)


def test_json_is_read_strictly(tmp_path):
    assert yaml_file.parse_json('{"a": [1, 2.5e-4]}', "x") == {"a": [1, 2.5e-4]}
    for text, match in (
        ('{"a": 1, "a": 2}', "is repeated"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1,}', "line 1"),
        ("[" * 100_000, "cannot|can be used|JSON"),
    ):
        with pytest.raises(ConfigError, match=match):
            yaml_file.parse_json(text, "x")
    ours = tmp_path / "ours.json"
    ours.write_text('{"env": {"name": "cartpole"}, "training": {"total_timesteps": 1000}}')
    assert read_config(ours)["training"] == {"total_timesteps": 1000}
