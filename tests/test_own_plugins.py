"""The built-in applications are plugins."""

from slipstream.core import plugins


def test_our_applications_are_plugins():
    assert {"forex", "portfolio", "hockey", "tictactoe"} <= plugins.merge_offers("kernels").keys()
