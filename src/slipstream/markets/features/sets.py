"""Sets of features: one name for what a system shows of every asset of a portfolio."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slipstream.markets.features.registry import require_distinct, resolve

# The window of the volume's score is the longest memory: what a hole costs, and the embargo of
# folds. What other windows leave of planted edges: the table of docs/portfolio.md.
FEATURE_SETS: dict[str, tuple[str, ...]] = {
    "portfolio": (
        "log_open",
        "log_high",
        "log_low",
        "log_return_1",
        "volume_z_720",
        "macd_rel",
        "macd_signal_rel",
        "macd_hist_rel",
        "rsi_14",
        "cci_14",
        "dx_14",
        "atr_regime_shift",
        "range_breakout_volume",
        "trend_reacceleration",
    ),
    # Raw levels, as Cappuccino has them.
    "cappuccino": (
        "open",
        "high",
        "low",
        "close",
        "volume",
        "macd",
        "macd_signal",
        "macd_hist",
        "rsi_14",
        "cci_14",
        "dx_14",
        "atr_regime_shift",
        "range_breakout_volume",
        "trend_reacceleration",
    ),
    # What is left of FinRL_Crypto's list after the columns that it drops.
    "finrl_crypto": ("close", "volume", "rsi_14", "dx_14", "ultosc", "obv", "ht_dcphase"),
}


def expand(names: Sequence[str], columns: Collection[str] = ()) -> tuple[str, ...]:
    """Feature names with every name of a set replaced by the set's features.

    Args:
        names: features, sets of features, columns of the data; or one name.
        columns: extra columns of the data, which come before sets of the same name.

    Raises:
        ConfigError: unknown or repeated name.
    """
    given = (names,) if isinstance(names, str) else names
    every = [
        feature
        for name in given
        for feature in ((name,) if name in columns else FEATURE_SETS.get(name, (name,)))
    ]
    require_distinct(every)
    for name in every:
        resolve(name, columns, FEATURE_SETS)
    return tuple(every)
