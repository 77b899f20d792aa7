"""Vector environments of other libraries, made by functions that a run names."""

import gymnasium
from gymnasium.vector import SyncVectorEnv


def _cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


def gymnasium_vec(num_envs, mode="NextStep"):
    return SyncVectorEnv([_cartpole] * num_envs, autoreset_mode=mode)


def own_vec(num_envs):
    """One random stream for all copies, and no `reset_mask`."""
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        max_episode_steps=20,
    )


def broken(num_envs, licence=None):
    raise RuntimeError(f"no licence {licence}")


def sb3_vec(num_envs):
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([_cartpole] * num_envs)


def pool(num_envs):
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=1, max_episode_steps=20)


def normalised(num_envs, training=True):
    from stable_baselines3.common.vec_env import VecNormalize

    return VecNormalize(sb3_vec(num_envs), training=training)


def normalised_by_gymnasium(num_envs):
    return gymnasium.wrappers.vector.NormalizeObservation(gymnasium_vec(num_envs))
