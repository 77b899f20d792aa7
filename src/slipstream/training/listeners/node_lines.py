"""What a terminal says of a cluster's nodes, as `Cluster.standing` gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Nodes = Sequence[Mapping[str, Any]]


def cluster_part(nodes: Nodes, stretches: bool = True) -> str:
    """``3 nodes, 46 of 48 seats busy, 120 stretches, 1 loss``.

    Args:
        nodes: where things stand.
        stretches: False for a run, whose seats answer call by call: ``3 nodes, 48 seats, ...``.
    """
    told = {key: sum(node[key] for node in nodes) for key in ("seats", "busy", "answers", "losses")}
    there = sum(node["seats"] > 0 for node in nodes)
    busy = f"{told['busy']} of {_many(told['seats'], 'seat')} busy"
    return ", ".join(
        (
            _many(there, "node"),
            busy if stretches else _many(told["seats"], "seat"),
            _many(told["answers"], "stretch" if stretches else "answer", "es" * stretches or "s"),
            _many(told["losses"], "loss", "es"),
        )
    )


def node_lines(nodes: Nodes, stretches: bool = True) -> list[str]:
    """A line for each node of a cluster."""
    parts = [(node["node"], cluster_part([node], stretches)) for node in nodes]
    return [f"  {name}: {part.partition(', ')[2]}" for name, part in parts]


def _many(number: int, word: str, plural: str = "s") -> str:
    return f"{number:,} {word}{'' if number == 1 else plural}"
