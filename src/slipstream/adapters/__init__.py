"""Faces: slipstream's copies as other libraries expect environments, and theirs as ours.

Only `compat` imports this folder; its files are looked up by name (docs/faces.md). A face
is one file with a `make_vec`, and a line of `ADAPTERS` in `api/envs.py`:

    gymnasium_vector    Gymnasium's `VectorEnv`
    sb3                 Stable-Baselines3's `VecEnv`
    elegantrl           ElegantRL's vector protocols
    envpool             EnvPool's `send` and `recv`
    pettingzoo          PettingZoo's `ParallelEnv`; the shortest, see docs/extending-interfaces.md

What they stand on, and what has no `make_vec`:

    copies              `AdapterBatch`, which every face steps, and what it refuses as exceptions
    gymnasium_env       Gymnasium's `Env` over one copy of a kernel
    ids                 importing it registers the built-in environments with Gymnasium
    knows_wrappers      answers SB3's question for wrappers, in a copy's own process
"""
