"""Data are read once; settings share them; a market needs folds."""

from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.core.errors import ConfigError, DataError
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.training.population.environment_source import MemberEnv, batch_shape


def test_data_are_read_once(engine):
    source = engine.source()
    module = load_kernel(engine.member(0).config.env_name).module
    module.LOADS.clear()
    first = source.environment(engine.member(0).config)
    cheap = source.environment(engine.member(1, **{"env.fee": 0.01}).config)
    assert source.generation == 1 and module.LOADS == [600]
    assert cheap.loaded.data is first.loaded.data
    assert cheap.loaded.params["fold3/test"][0].fee == 0.01
    other = source.environment(engine.member(1, **{"env.bars": 700}).config)
    assert source.generation == 2 and module.LOADS == [600, 700]
    assert source.data_number(first) == source.data_number(cheap) == 0
    assert source.data_number(other) == 1
    assert source.environment(engine.member(0).config) is first
    assert source.folds(engine.member(0).config) == 6


def test_settings_without_data_are_no_new_data(engine):
    """Games have no arrays: other settings are no reason to fork workers again."""
    source = engine.source()
    source.environment(engine.member(0, env="cartpole").config)
    before = source.generation
    source.environment(engine.member(0, env="pendulum").config)
    assert source.generation == before
    assert source.folds(engine.member(0, env="cartpole").config) == 6


def test_folds_have_their_own_records_and_scales(engine):
    source = engine.source()
    places = [MemberEnv(m, source.environment(m.config)) for m in map(engine.member, range(6))]
    assert len({place.records for place in places}) == 6
    assert len({float(place.spec.fixed_std[0]) for place in places}) == 6
    member = replace(places[0].member, fold="development", test="holdout")
    whole = MemberEnv(member, places[0].environment)
    assert whole.records == places[0].environment.loaded.params["development/train"]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"agent.learning_rate": 0.5}, True),
        ({"agent.target_kl": 0.5}, True),
        ({"env.fee": 0.5}, True),
        ({"env.bars": 500}, False),
        ({"agent.n_steps": 32}, False),
        ({"agent.batch_size": 48}, False),
        ({"agent.n_epochs": 2}, False),
        ({"agent.net_arch": [8]}, False),
        ({"agent.activation": "relu"}, False),
        ({"agent.init_std": 0.3}, False),
        ({"training.num_envs": 12}, False),
        ({"env": "cartpole"}, False),
    ],
)
def test_shapes(engine, changes, same):
    source = engine.source()
    one, other = engine.member(0), engine.member(1, **changes)
    assert (batch_shape(one, source) == batch_shape(other, source)) == same


def test_what_cannot_be_divided(engine):
    with pytest.raises(DataError, match="bars"):
        engine.source().environment(engine.member(0, **{"env.bars": 40}).config)


def test_a_market_without_folds(engine, tmp_path):
    path = tmp_path / "no_folds.py"
    source = Path(engine.member(0).config.env_name).read_text()
    source = source.replace("def load_folds(", "def _folds(").replace(
        "def with_params(", "def _with_params("
    )
    source = source.replace(
        '    raise AssertionError("a study loads folds")',
        "    from slipstream.core.timeline import FoldPlan\n\n"
        "    return _folds(config, FoldPlan())",
    )
    path.write_text(source)
    with pytest.raises(ConfigError, match="load_folds"):
        engine.source().environment(engine.member(0, env=str(path)).config)
