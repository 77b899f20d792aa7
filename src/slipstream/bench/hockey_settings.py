"""What the hockey cases train, in one place."""

from __future__ import annotations

from typing import Any

BOTS = {"weak": 1.0, "strong": 3.0}


def against_bots(**training: Any) -> dict[str, Any]:
    """PPO from nothing with the kernel's own suggestions: 64 x 64 networks, both bots."""
    return {"env": {"name": "hockey", "opponents": BOTS}, "training": training}


def from_a_replay(agent: str, levels: int, **settings: Any) -> dict[str, Any]:
    """DQN or SAC against the weak bot; one copy, as SB3 has it."""
    env = {"name": "hockey", "opponents": {"weak": 1.0}, "time_out": "terminated"}
    own = {"name": agent, "learning_starts": 100, "replay_size": 1_000_000, "iteration": 256}
    if agent == "dqn":  # the same work as SB3's
        own |= {"double": False, "dueling": False, "n_step": 1, "target_every": 2_500}
    return {
        "env": {**env, "action_fineness": levels + 1 if levels else 0},
        "agent": {**own, "observation_normalization": False, **settings},
        "training": {"num_envs": 1, "total_steps": 10**9},
        "evaluation": {"every": 1.0},
    }


def against_itself() -> dict[str, Any]:
    """The same, against a pool of 8 snapshots that is full from the eighth iteration on."""
    pool = {"slots": 8, "snapshot_iterations": 1, "evaluation": {"random": 1.0}}
    return {"env": {"name": "hockey", "self_play": pool}}
