"""What is known of an agent outside `rl/agents/`, and how a policy acts: no more than is said."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np

import slipstream
from slipstream.rl.nets.optimizer import Parameters, adam
from slipstream.rl.nets.policy import Policy

SOURCE = Path(slipstream.__file__).parent
OUTSIDE = (
    *("kernels", "gym", "games", "markets", "studies", "report", "api", "cli", "adapters"),
    *(f"training/{name}" for name in ("population", "processes", "cluster", "autotune")),
)
SIZES = {"n_steps", "n_epochs", "net_arch"}


def test_nothing_outside_reads_an_algorithms_sizes():
    places = [SOURCE / name for name in OUTSIDE]
    assert sum(place.is_dir() for place in places) >= 8  # applications may be absent
    files = [file for place in places for file in place.rglob("*.py")]
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno} {node.attr}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in SIZES
    ]
    assert not found


def test_nothing_outside_knows_one_algorithm():
    files = [f for name in OUTSIDE for f in (SOURCE / name).rglob("*.py")]
    folders = [place.parent.name for place in (SOURCE / "rl/agents").glob("*/__init__.py")]
    assert {"ppo", "dqn", "sac"} <= set(folders)
    own = re.compile(rf"agents[./]({'|'.join(folders)})\b")
    naming = [f.name for f in files if own.search(f.read_text(encoding="utf-8"))]
    assert not naming


def test_a_policy_has_one_way_to_act():
    """`act` for people and `act_rows` for inner loops; other names are for adapters."""
    public = {name for name in vars(Policy) if not name.startswith("_")}
    acting = {name for name in public if "act" in name or "predict" in name or "values" in name}
    assert acting == {
        "act",
        "act_batch",
        "act_rows",
        "actor",
    }  # `actor`: buffers of a collector's thread


def test_groups_have_optimisers_of_their_own():
    actor, critic = Parameters({"w": (3,)}, 2), Parameters({"w": (3,), "v": (2,)}, 2)
    for group, times in ((actor, 1), (critic, 3)):
        for _ in range(times):
            group.gradients[:] = 1.0
            group.steps += 1
            for m in range(2):
                adam(group.arrays, m, 0, group.flat.shape[1], 1.0, 0.1, 1e-8)
    assert actor.steps.tolist() == [1, 1] and critic.steps.tolist() == [3, 3]
    np.testing.assert_allclose(actor.weights["w"], -0.1, rtol=1e-4)
    np.testing.assert_allclose(critic.weights["w"], -0.3, rtol=1e-4)
    state = {f"actor.{k}": v for k, v in actor.state_dict().items()}
    state |= {f"critic.{k}": v for k, v in critic.state_dict().items()}
    again = Parameters({"w": (3,), "v": (2,)}, 2)
    again.load_state_dict(
        {k.removeprefix("critic."): v for k, v in state.items() if k.startswith("critic.")}
    )
    assert again.flat.tobytes() == critic.flat.tobytes() and again.steps.tolist() == [3, 3]
