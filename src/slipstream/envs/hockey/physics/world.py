"""A step of the world, 0.02 s: contacts, islands, continuous collision."""

from __future__ import annotations

from typing import Any

from slipstream.envs.hockey.physics.boxes import find_contacts, synchronize
from slipstream.envs.hockey.physics.continuous import solve_impacts
from slipstream.envs.hockey.physics.facts import MOVING, PUCK
from slipstream.envs.hockey.physics.island import solve_islands
from slipstream.envs.hockey.physics.sweeps import set_pose


def begin_step(s: Any, d: Any) -> None:
    """New bodies look for contacts."""
    if s.fresh:
        find_contacts(s, d)


def finish_step(s: Any, d: Any) -> None:
    """Moves everything; the contacts have been refreshed."""
    if s.fresh:  # the solver's poses follow from centres of mass, which have been rounded
        set_pose(s, d, 0)
        set_pose(s, d, 1)
        s.fresh = False
    solve_islands(s, d)
    for body in range(PUCK, -1, -1):
        if s.flagged[body]:
            synchronize(s, d, body)
    find_contacts(s, d)
    solve_impacts(s, d)
    for body in range(MOVING):
        s.force[body, 0] = 0.0
        s.force[body, 1] = 0.0
        s.torque[body] = 0.0
