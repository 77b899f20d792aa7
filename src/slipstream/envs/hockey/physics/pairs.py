"""Which bodies make a pair, and how they rub and bounce."""

from __future__ import annotations

from slipstream.envs.hockey.physics.facts import (
    BOUNCE,
    MOVING,
    ONE_TWO,
    PUCK,
    RACKET_FRICTION,
    TWO_PUCK,
    WALL_FRICTION,
)


def body_a(k: int) -> int:
    """The static body of a pair, or the racket, or player 0."""
    if k < ONE_TWO:
        return MOVING + k // MOVING
    return 1 if k == TWO_PUCK else 0


def body_b(k: int) -> int:
    """The other body of a pair, which moves."""
    if k < ONE_TWO:
        return k % MOVING
    return 1 if k == ONE_TWO else PUCK


def friction(a: int, b: int) -> float:
    """Root of the product of both bodies' coefficients: 1 of a racket, 0.1 of all others."""
    if b == PUCK:
        return RACKET_FRICTION if a < MOVING else WALL_FRICTION
    return 1.0 if a < MOVING else RACKET_FRICTION


def bounce(b: int) -> float:
    """The larger restitution of both bodies: only the puck has any."""
    return BOUNCE if b == PUCK else 0.0
