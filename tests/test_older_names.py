"""Classes of other systems are answered with a line that works."""

from __future__ import annotations

import pytest

import slipstream


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.peers] if "sb3" in line else [])
        for name, line in slipstream._INSTEAD.items()
    ],
)
def test_a_class_of_another_system_is_answered_with_a_line_that_works(name, tmp_path, monkeypatch):
    with pytest.raises(ImportError, match=rf"slipstream has no class {name}. Write: ") as caught:
        getattr(slipstream, name)
    line = str(caught.value).partition("Write: ")[2]
    if "sb3" in line:
        pytest.importorskip("stable_baselines3")
    names = {"slipstream": slipstream, "ENV": "pendulum" if name in ("SAC", "TD3") else "cartpole"}
    if name != "PPO":
        line = line.replace("overrides={", "overrides={'agent.learning_starts': 8, ")
    small = ", total_timesteps=64, num_envs=2, report=False)"
    monkeypatch.chdir(tmp_path)
    made = eval(line[:-1] + small if ".train(" in line else line, names)
    if ".train(" not in line:
        made.close()


@pytest.mark.parametrize("name", slipstream._OLDER)
def test_a_class_of_an_older_system_is_answered_with_an_import_that_works(name):
    if name in ("TrainerAgent", "TrainerCore", "EnvBuilder"):
        pytest.importorskip("torch")
    with pytest.raises(ImportError) as caught:
        getattr(slipstream, name)
    exec(str(caught.value).partition("Write: ")[2].partition(" (docs")[0])


@pytest.mark.parametrize("name", slipstream._OLDER_FUNCTIONS)
def test_a_function_of_an_older_system_is_no_attribute(name):
    assert name not in slipstream.__all__ and not hasattr(slipstream, name)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'") as caught:
        getattr(slipstream, name)
    names = {}
    exec(str(caught.value).partition("Write: ")[2].partition(" (docs")[0], names)
    assert callable(names[name])


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        slipstream.Nothing  # noqa: B018
