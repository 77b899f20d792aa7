"""Features of a panel: the registry's columns for every asset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slipstream.core.errors import DataError
from slipstream.core.text import plural
from slipstream.markets.data.bars import FloatArray, IntArray
from slipstream.markets.data.panel import Panel
from slipstream.markets.features.feature_registry import (
    compute_feature,
    describe_longest_warm_up,
    expand_feature_sets,
    resolve_feature,
    warm_up_rows,
)

_FEWEST = 200  # fewest rows for which a constant column is an error
# Always 0 if every bar opens at the previous close, as in synthetic markets and at some exchanges.
# It is noted, not rejected: sets keep their shape across markets.
_NOTED = ("log_open",)


class PanelFeatures(NamedTuple):
    """Features of A assets, causal and unscaled.

    Attributes:
        values: float64 [T, A, F]; row t uses bars <= t of the same asset and segment. NaN if an
            asset is not listed or has had fewer than `warm_up` bars since the segment or the asset
            began.
        warm_up: rows between the first bar and the first usable row, the longest of the columns.
        notes: sentences for the user.
        names: the columns' names, with sets expanded.
    """

    values: FloatArray
    warm_up: int
    notes: tuple[str, ...]
    names: tuple[str, ...]


def panel_features(names: Sequence[str], panel: Panel) -> PanelFeatures:
    """Compute features of every asset, separately in every segment of the panel.

    A gap inside a segment counts as the panel's flat bars without volume. `check_constant_features`
    rejects columns that are constant over a training window.

    Args:
        names: registry names, names of sets (`portfolio`, `cappuccino`, `finrl_crypto`), or of
            extra columns that all assets have.
        panel: the bars.

    Raises:
        ConfigError: unknown or repeated name.
        DataError: no segment is longer than the warm-up, or missing numbers in a column of the
            data.
    """
    names = expand_feature_sets(names, panel.extra)
    warm_up = warm_up_rows(names, panel.extra)
    assets = len(panel.symbols)
    values = np.full((len(panel.time), assets, len(names)), np.nan)
    for asset in range(assets):
        for low, high in panel.segments.tolist():
            tradable = panel.tradable[low:high, asset]
            first = low + int(tradable.argmax()) + warm_up
            if not tradable.any() or high <= first:
                continue
            bars = panel.bars(asset, first - warm_up, high)
            for index, name in enumerate(names):
                values[first:high, asset, index] = compute_feature(name, bars, warm_up)[warm_up:]
            values[first:high, asset][~panel.listed[first:high, asset]] = np.nan
    notes = _notes(names, values, warm_up, panel)
    features = PanelFeatures(values, warm_up, tuple(notes), names)
    values.flags.writeable = False
    return features


def check_constant_features(
    features: PanelFeatures, symbols: Sequence[str], rows: IntArray
) -> None:
    """Raise DataError if a column is constant over some rows, such as a training window.

    Assets with fewer than 200 usable rows among them are not checked, and `log_open` may be 0.
    """
    columns = [index for index, name in enumerate(features.names) if name not in _NOTED]
    for asset, symbol in enumerate(symbols):
        values = features.values[rows, asset]
        values = values[~np.isnan(values[:, 0])]
        if len(values) < _FEWEST:
            continue
        dead = [index for index in columns if (values[:, index] == values[0, index]).all()]
        if dead:
            name = features.names[dead[0]]
            raise DataError(
                f"{symbol}: feature {name} must change, it is {values[0, dead[0]]:g} in all "
                f"{len(values):,} bars of the training window and is uninformative: leave it "
                "out of `features`, or leave the asset out of `symbols`."
            )


def _notes(names: Sequence[str], values: FloatArray, warm_up: int, panel: Panel) -> list[str]:
    """Return notes on features; raise DataError if nothing is usable."""
    usable = [not bool(np.isnan(values[:, a, 0]).all()) for a in range(len(panel.symbols))]
    if not any(usable):
        longest = int((panel.segments[:, 1] - panel.segments[:, 0]).max())
        slowest = describe_longest_warm_up(names, panel.extra, longest // 20)
        raise DataError(
            f"The assets must have more neighbouring bars than the {warm_up:,} that their features "
            f"need to warm up, the longest segment without a hole has {longest:,}: load more data, "
            f"or leave out the slowest features ({slowest})."
        )
    notes = [
        f"{symbol} has fewer than {plural(warm_up + 1, 'bar')}, all of them warm-up of its "
        "features, and is never traded."
        for symbol, is_usable in zip(panel.symbols, usable, strict=True)
        if not is_usable
    ]
    for name in names:
        feature, _ = resolve_feature(name, panel.extra)
        column = values[:, :, names.index(name)]
        if name in _NOTED and not np.nan_to_num(column).any():
            notes.append(
                f"Feature {name} is 0 in every bar: all bars open at the close before them, and it "
                "is uninformative."
            )
        if feature is not None and feature.cumulative:
            notes.append(
                f"Feature {name} counts from the first bar of the data (or of a segment), as in "
                "the system it comes from: with other data it differs by a constant."
            )
    return notes
