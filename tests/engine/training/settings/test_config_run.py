"""RunConfig: what is refused, what is filled in, and that a dumped config is the same config."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.core.errors import ConfigError, SlipstreamError
from slipstream.core.storage import yaml_file
from slipstream.training.settings.config import RunConfig, parse_overrides, resolve


def refusal(target, overrides=()):
    with pytest.raises(SlipstreamError) as caught:
        resolve(target, overrides)
    return str(caught.value)


def test_a_name_is_a_complete_config():
    config = resolve("cartpole")
    assert config.env_name == "cartpole"
    assert config.env_settings["gravity"] == 9.8
    assert config.agent_name == "ppo"
    assert resolve("gym:Acrobot-v1").training.num_envs == "auto"


def test_a_kernel_suggests_what_the_user_leaves_open():
    suggested = resolve("cartpole")
    assert suggested.agent.batch_size == 256
    assert resolve("cartpole", {"agent.n_epochs": 3}).agent.n_epochs == 3
    # A suggestion that does not fit the user's sizes gives way; the user's own is refused.
    assert resolve("cartpole", {"training.num_envs": 3}).agent.batch_size is None
    assert "does not divide" in refusal(
        "cartpole", {"training.num_envs": 3, "agent.batch_size": 256}
    )


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("agent.learning_rat=1", "`agent.learning_rat` is not a known key; did you mean `learning"),
        ("trainig.seed=1", "did you mean `training`?"),
        ("seed=1", "`seed` is not a known section"),
        ("env.gravty=1", "did you mean `gravity`?"),
        ("agent.name=ppp", "did you mean `ppo`?"),
        ("training.members=0", "`training.members`"),
        ("training.num_envs=many", "`training.num_envs"),
        ("agent.learning_rate=[0.1, 0.2]", "lists 2 numbers for 1 members"),
        ("training.seed.low=1", "cannot be set"),
        ("agent.n_epochs", "section.key=value"),
        ("agent..epochs=1", "section.key=value"),
        ("agent=[1", "line 1, column"),
    ],
)
def test_a_bad_override_is_refused_in_words(override, words):
    values = {"env": "cartpole", "training": {"seed": 3}}
    assert words in refusal(values, [override])


def test_a_minibatch_that_does_not_divide_names_the_nearest_ones():
    message = refusal(
        "cartpole", {"training.num_envs": 7, "agent.n_steps": 128, "agent.batch_size": 100}
    )
    assert "7 environments = 896 rows" in message
    assert "64 and 112" in message


def test_sizes_are_checked_once_auto_has_become_a_number():
    sizes = {"agent.n_steps": 128, "agent.batch_size": 100, "training.num_envs": "auto"}
    config = resolve("cartpole", sizes)
    with pytest.raises(ConfigError, match="does not divide"):
        config.with_training(num_envs=7)


def test_lists_have_one_number_per_member():
    config = resolve("cartpole", ["agent.learning_rate=[1e-4, 2e-4]", "training.members=2"])
    assert config.agent.learning_rate == (1e-4, 2e-4)


def test_overrides_win_over_the_file_and_a_section_may_be_one():
    config = resolve({"env": "cartpole", "training": {"seed": 1}}, ["training.seed=2", "agent=ppo"])
    assert config.training.seed == 2
    with pytest.raises(ConfigError, match=r"training\.seed is set twice"):
        resolve("cartpole", ["training.seed=1", "training.seed=2"])


def test_unknown_names_say_what_would_work(tmp_path):
    assert "did you mean `cartpole`?" in refusal("cartpol")
    assert "cannot be read" in refusal(str(tmp_path / "absent.yaml"))
    assert "There is no kernel file" in refusal(str(tmp_path / "absent.py"))
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert "cannot be trained" in refusal(str(other))
    assert "`env.name` is required" in refusal({"agent": {"n_epochs": 1}})


def test_a_gymnasium_target_takes_keyword_arguments():
    config = resolve("gym:Acrobot-v1", ["env.kwargs.render_mode=rgb_array"])
    assert config.env_settings == {"kwargs": {"render_mode": "rgb_array"}}
    assert config.short_name == "Acrobot-v1"
    assert "known keys: kwargs" in refusal("gym:Acrobot-v1", ["env.gravity=1"])


def test_yaml_errors_name_line_and_column(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("env: cartpole\nagent:\n  n_epochs: 2\n  n_epochs: 3\n")
    assert "line 4, column 3: `n_epochs` is repeated (first on line 3)" in refusal(str(file))
    file.write_text("env: [cartpole\n")
    assert "line 2, column 1" in refusal(str(file))
    file.write_text("- 1\n")
    assert "must hold the sections" in refusal(str(file))
    file.write_text("env: !!python/object/apply:os.getcwd []\n")
    assert "could not determine a constructor" in refusal(str(file))


def test_the_hash_is_of_what_decides_the_result():
    config = resolve("cartpole", {"training.num_envs": 8})
    same = config.with_training(out="/elsewhere", shards=2)
    assert config.hash == same.hash
    assert config.hash != config.with_training(seed=1).hash


def test_a_run_from_before_a_setting_was_added_is_the_same_run():
    config = resolve("cartpole", {"training.num_envs": 8})
    assert config.hash == "9c8562743d18b58b1266c4e7a809ac8cdc50e2f5d7d665ef4a474670f243c2fc"
    assert config.hash != config.with_training(precision="tf32").hash


def test_a_setting_that_is_gone_stays_in_old_files_and_is_refused_where_it_is_asked_for():
    config = resolve("cartpole")
    for value in (False, True):
        saved = config.as_mapping()
        saved["training"]["double_buffer"] = value
        assert RunConfig.from_mapping(saved) == config
    assert resolve({"env": "cartpole", "training": {"double_buffer": False}}) == config
    assert "`training.double_buffer` was removed" in refusal(
        "cartpole", ["training.double_buffer=yes"]
    )


def test_a_mapping_of_overrides_is_taken_as_it_is():
    assert parse_overrides({"agent.n_epochs": 3}) == {"agent.n_epochs": 3}
    assert parse_overrides(["env.flatten_at=16:45", "agent.x=1e-4"]) == {
        "env.flatten_at": "16:45",
        "agent.x": 1e-4,
    }


numbers = st.floats(1e-9, 1.0, allow_nan=False)


@settings(max_examples=30, deadline=None)
@given(
    rate=numbers,
    force=st.floats(1e-6, 1e6),
    members=st.integers(1, 5),
    per_member=st.booleans(),
    num_envs=st.one_of(st.just("auto"), st.integers(1, 64)),
    seed=st.integers(0, 2**63 - 1),
    out=st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
)
def test_a_dumped_config_is_the_identical_config(
    rate, force, members, per_member, num_envs, seed, out
):
    config = resolve(
        {
            "env": {"name": "cartpole", "force": force},
            "agent": {"learning_rate": [rate] * members if per_member else rate},
            "training": {"members": members, "num_envs": num_envs, "seed": seed, "out": out},
        }
    )
    again = RunConfig.from_mapping(yaml_file.parse(config.to_yaml(), "config"))
    assert again == config
    assert again.hash == config.hash


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(), plain, max_size=4))
def test_yaml_reads_what_it_wrote(values):
    assert yaml_file.parse(yaml_file.dump(values), "test") == values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("17:00", "17:00"),
        ("2024-01-31", "2024-01-31"),
        ("no", "no"),
        ("true", True),
        ("500_000", 500_000),
        ("~", None),
        ("'1'", "1"),
        (".5", 0.5),
        ("-3", -3),
        (".inf", float("inf")),
    ],
)
def test_scalars_are_read_as_people_mean_them(text, value):
    read = yaml_file.parse(text, "test")
    assert read == value
    assert type(read) is type(value)


def test_a_file_is_loaded_as_it_was_written(tmp_path):
    config = resolve("pendulum", {"training.num_envs": 4})
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml())
    assert resolve(file) == config


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_the_agent_of_a_whole_config_is_switched(name):
    """The config written by `init` is PPO's: another agent uses its own settings, with a notice."""
    written = resolve({"env": {"name": "cartpole"}, "training": {"members": 3}}).as_mapping()
    changes = {"agent.name": name, "agent.gamma": 0.5}
    switched = resolve(written, changes)
    plain = resolve({"env": written["env"], "training": {"members": 3}}, changes)
    assert switched == plain and switched.agent.gamma == 0.5
    if name == "ppo":
        assert switched.note is None
    else:
        assert f"`agent.name` is {name} now" in switched.note
        assert "agent.clip_range=0.2" in switched.note
        assert "training.num_envs=12" not in switched.note
