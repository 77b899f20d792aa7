"""What is known of a saved policy, for people: from its own files, and nothing of it is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.errors import CheckpointError
from slipstream.core.reader import read_json
from slipstream.core.storage import checkpoint
from slipstream.core.storage.provenance import commit_words
from slipstream.core.text import percent, printable, stamp
from slipstream.rl.best_policies import BEST
from slipstream.rl.nets.observations import LIMIT
from slipstream.rl.nets.policy import Policy
from slipstream.rl.nets.policy_file import unpack
from slipstream.training.runs.policies import deployed_folder
from slipstream.training.runs.run import CONFIG, PROVENANCE, Run
from slipstream.training.settings.target import read_config

# Parts of the names of settings that say what an order or a position costs.
_COSTS = ("commission", "slippage", "spread", "swap", "fee", "cost", "interest", "funding")
_REMEDY = "Give a run's directory, a study's, or a policy's own folder."


def policy_facts(path: Path, member: int | None = None) -> dict[str, str]:
    """Facts by their name, in the order in which they are shown.

    Args:
        path: a run, of which the best member's policy is meant unless `member` is given; a study;
            or a policy's own folder.

    Raises:
        CheckpointError: there is no policy, or it is damaged.
    """
    folder = deployed_folder(path)
    if folder is None:
        best = Run.open(path).best
        member = best.highest if member is None else member
        folder = best.folder_of(member)
        tensors, manifest = best.load(member)
    else:
        tensors, manifest = checkpoint.load(folder)
    policy = unpack(tensors, manifest.get("policy"))
    above = folder.absolute().parents[1 if folder.absolute().parent.name == BEST else 0]
    made = read_json(above / PROVENANCE, CheckpointError, _REMEDY) or {}
    config = manifest.get("run") or (
        read_config(above / CONFIG) if (above / CONFIG).is_file() else {}
    )
    facts = {"policy": str(folder), **dict(_network(policy, manifest["policy"], config))}
    facts |= dict(_conditions(policy.conditions))
    windows = ((made | manifest).get("environment") or {}).get("windows_utc_seconds") or {}
    if manifest.get("trained"):  # of a deployment
        windows = {"training": manifest["trained"]}
    facts |= {f"{name} bars": " to ".join(map(stamp, span)) for name, span in windows.items()}
    facts |= dict(
        _scores(manifest, read_json(above / "result.json", CheckpointError, _REMEDY) or {})
    )
    facts |= dict(_origin(manifest, made))
    return facts


def _network(
    policy: Policy, own: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What it is, sees and does."""
    agent = (config.get("agent") or {}).get("name")
    yield "agent", f"{agent or 'unknown'}, seed {own['seed']}, format {own['format']}"
    kind = own["network"]["kind"]
    activation = f", {policy.activation}" if kind == "mlp" else ""
    dueling = ", dueling" if policy.dueling else ""
    layers = " and ".join(map(str, policy.widths))
    yield "network", f"{kind} of {layers}{activation}{dueling}; head {policy.actions.head}"
    yield "observation", f"{policy.native.observed.words}; rows {own['observation']['shape']}"
    yield "action", str(policy.actions.space(policy.actions.description()))
    yield "mask", "needed" if policy.native.masked else "none"
    if policy.scale is None:
        yield "scaler", "none: bytes divided by 255"
        return
    same = (policy.scale.mean == 0.0) & (policy.scale.inverse_std == 1.0)
    scaled, clipped = int((~same).sum()), np.isfinite(policy.scale.limit)
    bound = f"{int(clipped.sum())} clipped to +-{LIMIT:g}" if clipped.any() else "none clipped"
    yield "scaler", f"{scaled} of {same.size} columns, each by its own mean and deviation; {bound}"


def _conditions(known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What it was trained under."""
    words = {
        "environment": "environment",
        **{"bar_seconds": "seconds of a bar", "symbols": "symbols"},
        **{"symbols_at_once": "symbols at once", "lookback": "bars seen", "fill": "fill"},
        **{"decide_every": "decides every", "warm_up_bars": "bars to warm up"},
        "data_sha256": "training data",
    }
    for key, name in words.items():
        if key in known:
            yield name, _words(known[key])
    for one in known.get("features", ()):
        yield f"feature {one['name']}", _listed({k: v for k, v in one.items() if k != "name"})
    settings = known.get("settings", {})
    costs = {key: settings[key] for key in settings if any(part in key for part in _COSTS)}
    for name, chosen in (
        ("costs", costs),
        ("settings", {k: settings[k] for k in settings if k not in costs}),
    ):
        if chosen:
            yield name, _listed(chosen)


def _listed(values: Mapping[str, Any]) -> str:
    """Values by dotted name, however deep they lie."""
    found = [
        _listed({f"{name}.{key}": one for key, one in value.items()})
        if isinstance(value, Mapping) and value
        else f"{name} {_words(value)}"
        for name, value in values.items()
    ]
    return ", ".join(found)


def _words(value: Any) -> str:
    """A plain value without Python's brackets and quotes."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(_words, value)) if isinstance(value, list) else str(value)


def _scores(own: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What it was chosen by, and what was measured afterwards."""
    if "score" in own:
        test = own.get("test") or {}  # of a policy that was handed on
        what = test.get("score_is") or result.get("score_is", "score")
        yield (
            "chosen by",
            f"{what} {own['score']:.6g} on {own['split']}, after {own['steps']:,} steps",
        )
        for one in result.get("members", ()):
            if one.get("member") == own.get("member") and one.get("test_score") is not None:
                yield "test", f"{what} {one['test_score']:.6g} on {result.get('test_is')}"
        if isinstance(test.get("score"), float):
            yield "test", f"{what} {test['score']:.6g} on {test.get('test_is')}"
        return
    for key, name in (("label", "chosen by"), ("trial", "trial")):
        if own.get(key) is not None:
            yield name, str(own[key])
    if own.get("overrides"):
        yield "found", _listed(own["overrides"])
    if own.get("forced"):
        yield "recommended", "no: it was deployed by force"
    for gate in own.get("gates", ()):
        forced = f"; forced: {gate['forced']}" if gate["forced"] and not gate["passed"] else ""
        word = "passed" if gate["passed"] else "FAILED"
        yield f"gate {gate['name']}", f"{word}, {gate['figure']}{forced}"
    for one in (result.get("confirmation") or {}).get("candidates", ()):
        if one.get("trial") == own.get("trial") and "value" in one:
            # A ratio of few days has no bound.
            bound = f", lower bound {one['lcb']:.6g}" if "lcb" in one else ""
            yield "confirmation", f"{result.get('objective')} {one['value']:.6g}{bound}"
    holdout = result.get("holdout") or {}
    if holdout.get("mean") is not None:
        yield "hold-out", f"{result.get('objective')} {holdout['mean']:.6g}, mean of its seeds"
    if holdout.get("mean_return") is not None:
        yield "hold-out", f"{percent(holdout['mean_return'])}, mean of its seeds"


def _origin(own: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who made it, where and when."""
    yield "hash", str(own["policy"]["hash"])
    yield "written by", f"slipstream {own['policy']['slipstream']}"
    for key, name in (("study", "study"), ("id", "id")):
        if key in own or key in made:
            yield name, str(own.get(key, made.get(key)))
    for key in ("command", "started"):
        if key in made:
            yield key, printable(str(made[key]))
    if commit := commit_words((made.get("git") or {}).get("slipstream")):
        yield "commit", printable(commit)
