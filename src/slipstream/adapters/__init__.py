"""Faces: slipstream's copies as other libraries expect environments, and theirs as ours.

Only `compat` imports this folder; its files are looked up by name (docs/faces.md). A face
is one file with a `make_vec`, and a line of `FACES` in `api/environment.py`:

    gymnasium_vector    Gymnasium's `VectorEnv`; for ``gym:ID`` it is `gymnasium_foreign`
    sb3                 Stable-Baselines3's `VecEnv`; for ``gym:ID`` it is `sb3_foreign`
    elegantrl           ElegantRL's vector protocols
    envpool             EnvPool's `send` and `recv`
    pettingzoo          PettingZoo's `ParallelEnv`; the shortest, see docs/extending-interfaces.md

What they stand on, and what has no `make_vec`:

    copies              `FaceCopies`: copies of a kernel or of ``gym:ID``, which every face steps
    errors              what a face refuses, as the exceptions that other libraries expect
    gymnasium_env       Gymnasium's `Env` over one copy of a kernel
    gymnasium_face      what the faces for Gymnasium share
    ids                 importing it registers the built-in environments with Gymnasium
    knows_wrappers      answers SB3's question for wrappers, in a copy's own process
    hockey_player       a trained policy as a player of the original hockey environment
"""
