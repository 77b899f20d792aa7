"""Compares the two forms of an algorithm, and plants mistakes in its definition."""

import inspect
import re
from types import ModuleType

import numpy as np

from slipstream.rl.experience.replay.replay import Replay

# What a mistake in the optimiser of all torch forms would look like (rl/nets/torch_adam.py).
OPTIMISER = {
    "no norm": ("(max_norm / (norm + 1e-6))", "torch.ones_like(norm)"),
    "norm of all members": (".square().sum(1).sqrt()", ".square().sum().sqrt().expand(len(loss))"),
    "moments that are not corrected": ("first / (1.0 - BETA_1**t).float()", "first"),
}


def move(monkeypatch, name):
    """Has torch forms that are made from here on calculate on a device, whatever they are told."""
    import torch  # half of the folder needs none

    from slipstream.rl.agents import torch_agent

    monkeypatch.setattr(torch_agent, "get_device", lambda _: torch.device(name))


def copied(replay):
    """The same replay in other memory: learning changes priorities."""
    other = Replay(replay.config, replay.spec, replay.members, replay.num_envs, replay._mask_size)
    for ours, theirs in zip(other.ring, replay.ring, strict=True):
        if isinstance(ours, np.ndarray):
            ours[...] = theirs
    return other


def difference(left, right):
    """The largest one of arrays by name, relative where numbers are large, and its name."""
    assert left.keys() == right.keys()
    worst = {}
    for name in left:
        a, b = np.asarray(left[name], np.float64), np.asarray(right[name], np.float64)
        assert a.shape == b.shape, name
        gap = abs(a - b) / np.maximum(1, abs(a))
        worst[name] = float(np.max(np.where(np.isnan(a) & np.isnan(b), 0, gap), initial=0))
    return max(worst.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))


def plant(monkeypatch, mistake, definition, users):
    """Has modules use a definition with a mistake in it.

    Args:
        mistake: (right, wrong); `right` stands in one place of the definition.
        definition: modules, each after those that it imports; users: modules that import them.
    """
    right, wrong = mistake
    source = "\n\n".join(inspect.getsource(module) for module in definition)
    for module in ("__future__", *(module.__name__ for module in definition)):
        imports = rf"^from {re.escape(module)} import (\([^)]*\)|[^(\n]*)\n"
        source = re.sub(imports, "", source, flags=re.M)
    assert source.count(right) == 1, f"{right} is no longer in the torch form"
    mutant = ModuleType("mutant")
    exec("from __future__ import annotations\n" + source.replace(right, wrong), mutant.__dict__)
    for user in users:
        for name, value in vars(mutant).items():
            if getattr(value, "__module__", None) == "mutant" and hasattr(user, name):
                monkeypatch.setattr(user, name, value)
