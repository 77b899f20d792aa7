"""The velocity solver for an island of one contact with one point, which most islands are.

The same operations in the same order as `velocities.sweep`, on local variables.
"""

from __future__ import annotations

from typing import Any

from slipstream.core.single import add, mul, single, sub
from slipstream.envs.hockey.physics.constraints import masses
from slipstream.envs.hockey.physics.pairs import body_a, body_b
from slipstream.envs.hockey.physics.vectors import cross, dot
from slipstream.envs.hockey.record import (
    ACROSS,
    ALONG,
    ARM_AX,
    ARM_AY,
    ARM_BX,
    ARM_BY,
    BIAS,
    FRICTION,
    NORMAL_MASS,
    NORMAL_X,
    NORMAL_Y,
    POINT,
    TANGENT_MASS,
)


def number(s: Any, column: int) -> float:
    """Of the only constraint."""
    return single(s.constraint[0, column])


def sweep_alone(s: Any, d: Any, rounds: int) -> None:
    """All sweeps of the only contact, until nothing changes any more."""
    a, b = body_a(s.island[0]), body_b(s.island[0])
    ma, ia, mb, ib = masses(d, a, b)
    nx, ny = number(s, NORMAL_X), number(s, NORMAL_Y)
    ax, ay = number(s, POINT + ARM_AX), number(s, POINT + ARM_AY)
    bx, by = number(s, POINT + ARM_BX), number(s, POINT + ARM_BY)
    rub, bias = number(s, FRICTION), number(s, POINT + BIAS)
    mass, mass_across = number(s, POINT + NORMAL_MASS), number(s, POINT + TANGENT_MASS)
    along, across = number(s, POINT + ALONG), number(s, POINT + ACROSS)
    vax, vay, wa = single(s.velocity[a, 0]), single(s.velocity[a, 1]), single(s.spin[a])
    vbx, vby, wb = single(s.velocity[b, 0]), single(s.velocity[b, 1]), single(s.spin[b])
    # Rounding may lead the sweeps round a circle. Where a marked state comes back, only what is
    # left after whole circles need be done (Brent 1980).
    left, since, until = rounds, 0, 1
    m_along, m_across, m_vax, m_vay, m_wa = along, across, vax, vay, wa
    m_vbx, m_vby, m_wb = vbx, vby, wb
    while left > 0:
        left -= 1
        before, before_across = along, across
        for axis in range(2):  # friction, then the normal
            x = sub(sub(add(vbx, mul(-wb, by)), vax), mul(-wa, ay))
            y = sub(sub(add(vby, mul(wb, bx)), vay), mul(wa, ax))
            if axis == 0:
                most = mul(rub, along)
                new = add(across, mul(mass_across, -dot(x, y, ny, -nx)))
                new = max(-most, min(new, most))
                px, py = mul(sub(new, across), ny), mul(sub(new, across), -nx)
                across = new
            else:
                new = max(add(along, mul(-mass, sub(dot(x, y, nx, ny), bias))), 0.0)
                px, py = mul(sub(new, along), nx), mul(sub(new, along), ny)
                along = new
            vax = sub(vax, mul(ma, px))
            vay = sub(vay, mul(ma, py))
            wa = sub(wa, mul(ia, cross(ax, ay, px, py)))
            vbx = add(vbx, mul(mb, px))
            vby = add(vby, mul(mb, py))
            wb = add(wb, mul(ib, cross(bx, by, px, py)))
        if along == before and across == before_across:
            break
        since += 1
        known = along == m_along and across == m_across and wa == m_wa and wb == m_wb
        if known and vax == m_vax and vay == m_vay and vbx == m_vbx and vby == m_vby:
            left = left % since
        elif since == until:
            since, until = 0, 2 * until
            m_along, m_across, m_vax, m_vay, m_wa = along, across, vax, vay, wa
            m_vbx, m_vby, m_wb = vbx, vby, wb
    s.constraint[0, POINT + ALONG] = along
    s.constraint[0, POINT + ACROSS] = across
    s.velocity[a, 0] = vax
    s.velocity[a, 1] = vay
    s.spin[a] = wa
    s.velocity[b, 0] = vbx
    s.velocity[b, 1] = vby
    s.spin[b] = wb
