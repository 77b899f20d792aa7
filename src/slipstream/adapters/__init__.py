"""Adapters: slipstream's environments for other libraries.

Only `compat` imports this package; its modules are looked up by name (docs/guides/adapters.md). An
adapter is one module with a `make_vec` and a line in `ADAPTERS` of `api/envs.py`:

    gymnasium_vector    Gymnasium's `VectorEnv`
    sb3                 Stable-Baselines3's `VecEnv`
    elegantrl           ElegantRL's vector protocols
    envpool             EnvPool's `send` and `recv`
    pettingzoo          PettingZoo's `ParallelEnv`; the shortest, see docs/guides/custom-commands.md

Modules without a `make_vec`:

    batch               `AdapterBatch`, the base of all adapters, and their exceptions
    gymnasium_env       Gymnasium's `Env` over a single environment
    registration        registers the built-in environments with Gymnasium when imported
    wrapper_lookup      answers `env_is_wrapped` of SB3 in the process of a sub-environment
"""
