"""One fold of one trial with Optuna and SB3's PPO on 12 copies, as their users run it."""

from __future__ import annotations

import time
from functools import partial

import optuna
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from slipstream.bench.peers.portfolio_env import PeerPrices, PortfolioEnv
from slipstream.bench.worker import serve

COPIES, ROWS, MINIBATCH, EPOCHS = 12, 256, 256, 4


def measure(
    folder: str, iterations: int, test_steps: int, threads: int, vector: str
) -> dict[str, float]:
    """Seconds to build everything, per training step, and per step of a deterministic pass.

    Args:
        folder: of the arrays that `Prices.write` left.
        iterations: of 3,072 steps each, after one that warms up.
        test_steps: steps of all test passes side by side.
        threads: of PyTorch.
        vector: ``DummyVecEnv`` steps the copies one after another, ``SubprocVecEnv`` has a
            process for each.
    """
    kind = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}[vector]
    torch.set_num_threads(threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    figures: dict[str, float] = {}

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 1e-4, 1e-3, log=True)
        figures.update(_fold(folder, kind, rate, iterations, test_steps))
        return 0.0

    optuna.create_study(direction="maximize").optimize(objective, n_trials=1)
    return figures


def _fold(
    folder: str,
    kind: type[DummyVecEnv] | type[SubprocVecEnv],
    rate: float,
    iterations: int,
    test_steps: int,
) -> dict[str, float]:
    began = time.perf_counter()
    make = partial(_make, folder)
    env = VecMonitor(kind([make] * COPIES))
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=rate,
        n_steps=ROWS,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        max_grad_norm=0.5,
        seed=1,
        device="cpu",
    )
    built = time.perf_counter() - began
    model.learn(COPIES * ROWS)  # warms up
    began = time.perf_counter()
    model.learn(iterations * COPIES * ROWS, reset_num_timesteps=False)
    training = (time.perf_counter() - began) / (iterations * COPIES * ROWS)
    env.close()
    prices = PeerPrices.read(folder)
    tests = DummyVecEnv([partial(_make, folder, part) for part in range(len(prices.test))])
    observations = tests.reset()
    began = time.perf_counter()
    for _ in range(test_steps):
        actions, _ = model.predict(observations, deterministic=True)
        observations, _, _, _ = tests.step(actions)
    testing = (time.perf_counter() - began) / (test_steps * len(prices.test))
    return {
        "build_seconds": built,
        "train_seconds_per_step": training,
        "test_seconds_per_step": testing,
    }


def _make(folder: str, part: int | None = None) -> PortfolioEnv:
    return PortfolioEnv(PeerPrices.read(folder), part)


if __name__ == "__main__":
    serve(measure)
