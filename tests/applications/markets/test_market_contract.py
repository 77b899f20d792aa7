"""The forex kernel keeps the contract of kernels; its sources are hashed."""

import pytest

from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel_registry import load_kernel
from slipstream.kernels.source_files import source_hashes
from slipstream.markets.synthetic import SyntheticForex


@pytest.mark.parametrize("action", ["discrete", pytest.param("continuous", marks=pytest.mark.slow)])
def test_forex(tmp_path, action):
    SyntheticForex().write(tmp_path, bars=1500)
    config = {
        "data": {"folder": str(tmp_path), "spread_pips": 1.0},
        "features": ["rsi_14", "return_1"],
        "action": action,
        "max_steps": 60,
        "stop_loss": 20.0,
        "take_profit": 30.0,
    }
    check_environment(load_kernel("forex"), config, steps=150)


def test_every_file_of_a_built_in_kernel():
    hashes = source_hashes(load_kernel("forex").module)
    for name in (
        "markets.forex.kernel",
        "markets.forex.forex_loader",
        "markets.forex.forex_state",
        "markets.data.cleaning",
    ):
        assert f"slipstream.{name}" in hashes, name
    assert (
        "slipstream.markets.features.feature_registry" in hashes
        and "slipstream.core.random" in hashes
    )
    foreign = [name for name in hashes if not name.startswith("slipstream.")]
    assert not foreign, "libraries are told apart by their versions"
    assert not [name for name in hashes if ".training" in name or ".gym" in name]
