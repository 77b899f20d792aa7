"""Small prices of two pairs: random walks on the forex week's grid."""

import pytest


@pytest.fixture(scope="session")
def prices(tmp_path_factory):
    """A folder with EURUSD and USDJPY, 2,000 quarter hours each."""
    from forex_folder import write_symbol

    folder = tmp_path_factory.mktemp("prices")
    write_symbol(folder, "EURUSD", bars=2_000)
    write_symbol(folder, "USDJPY", bars=2_000, seed=1, price=150.0)
    return folder
