"""Names that users of other libraries write, and what they are called here: hints only.

Stable-Baselines3's hyper-parameters come first; an unknown key or algorithm is answered with the
name of this table if it is known where it was written.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# The first name that is known in the place where a key was written is suggested.
OURS: dict[str, tuple[str, ...]] = {
    "a2c": ("ppo",),
    "a3c": ("ppo",),
    "trpo": ("ppo",),
    "reinforce": ("ppo",),
    "ddpg": ("td3",),
    "ddqn": ("dqn",),
    "dddqn": ("dqn",),
    "rainbow": ("dqn",),
    "batch_size": ("minibatch", "batch"),
    "buffer_size": ("replay_size",),
    "ent_coef": ("entropy_coef", "temperature"),
    "exploration_final_eps": ("exploration_final",),
    "exploration_initial_eps": ("exploration_initial",),
    "gamma": ("discount",),
    "gradient_steps": ("updates_per_step",),
    "learning_rate": ("agent.learning_rate",),
    "lr": ("learning_rate", "agent.learning_rate"),
    "n_envs": ("num_envs",),
    "n_epochs": ("epochs",),
    "n_steps": ("horizon",),
    "net_arch": ("widths",),
    "target_noise_clip": ("smoothing_limit",),
    "target_policy_noise": ("smoothing_noise",),
    "target_update_interval": ("target_every",),
    "tau": ("target_rate",),
    "timesteps": ("total_steps",),
    "total_timesteps": ("total_steps",),
    "train_freq": ("train_every",),
    "vf_coef": ("value_coef",),
}
_OF_AGENTS = frozenset(name for names in OURS.values() for name in names) - {"num_envs"}
_GYMNASIUM = re.compile(r"[\w/:.-]+-v\d+")


def field_name(name: str, known: Collection[str]) -> str | None:
    """What a name of another library, or in other letters, is called among the known ones."""
    lower = name.lower()
    same = next((one for one in known if one.lower() == lower), None)
    return same or next((one for one in OURS.get(lower, ()) if one in known), None)


def setting_of_agent(name: str) -> str | None:
    """`agent.KEY` if a key that was written elsewhere is a hyper-parameter; else None."""
    ours = OURS.get(name.lower(), (name,))[0].removeprefix("agent.")
    if ours == "learning_rate" or (ours in _OF_AGENTS and ours not in ("total_steps", "ppo")):
        return f"agent.{ours}"
    return None


def is_gymnasium_id(name: str) -> bool:
    """Whether a name looks like an id of Gymnasium, such as CartPole-v1."""
    return _GYMNASIUM.fullmatch(name) is not None
