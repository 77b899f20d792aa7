"""Numbers that a foreign environment says at an episode's end are followed like a kernel's."""

import math
import sys

import gymnasium
import numpy as np
import pytest

import slipstream
from slipstream.core.errors import ConfigError
from slipstream.gym.infos import episode_metrics
from slipstream.report.history import episode_curves
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve

WORLD = """
import gymnasium
import numpy as np

class Shop(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sold = self.time = 0
        return np.zeros(2, np.float32), {"episode": {"sold": -1}}

    def step(self, action):
        self.sold += int(action)
        self.time += 1
        over = self.time == 8
        info = {"episode": {"sold": np.int64(self.sold)}, "till": 2.0 * self.sold} if over else {}
        return np.zeros(2, np.float32), float(action), False, over, info

gymnasium.register("Shop-v0", Shop)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    (tmp_path / "shop_world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "gym:shop_world:Shop-v0"
    sys.modules.pop("shop_world", None)
    gymnasium.registry.pop("Shop-v0", None)


def test_numbers_of_an_info():
    info = {"episode": {"r": np.float32(2.0)}, "till": np.array([3]), "r": 9.0, "name": "x"}
    found = episode_metrics(info, ["r", "till", "name", "absent"])
    assert found[:2] == [2.0, 3.0] and all(map(math.isnan, found[2:]))
    assert math.isnan(episode_metrics(None, ["r"])[0])


@pytest.mark.parametrize("backend", ["serial", pytest.param("process", marks=pytest.mark.slow)])
def test_they_reach_the_tables_and_the_page(shop, tmp_path, backend):
    config = {
        "env": {"name": shop, "metrics": ["sold", "till", "absent"]},
        "agent": {"n_steps": 16, "net_arch": [8], "n_epochs": 1, "batch_size": 32},
        "training": {"num_envs": 2, "total_timesteps": 256, "backend": backend, "workers": 1},
        "evaluation": {"episodes": 2},
    }
    run = slipstream.train(config, out=tmp_path / "run", report=False)
    table = run.metrics()
    assert table["episode/sold"][-1] == pytest.approx(table["score"][-1])
    assert table["episode/till"][-1] == pytest.approx(2.0 * table["score"][-1])
    assert table["episode/absent"][-1] is None or math.isnan(table["episode/absent"][-1])
    spec = resolve_environment(shop, {"metrics": ["sold"]}).spec
    assert [curve.name for curve in episode_curves(run, spec)] == ["length", "sold"]


def test_who_asks_for_none_has_the_config_of_before(shop):
    assert "metrics" not in resolve(shop).env_settings
    assert resolve(shop, {"env.metrics": []}).hash == resolve(shop).hash
    with pytest.raises(ConfigError, match=r"env\.metrics"):
        resolve(shop, {"env.metrics": "sold"})
    with pytest.raises(ConfigError, match=r"requires gym:ID"):
        resolve_environment("vec:numpy:zeros", {"metrics": ["sold"]})
