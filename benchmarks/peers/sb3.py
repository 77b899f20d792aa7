"""Stable-Baselines3's side of the benchmarks: PPO, DQN, SAC and its vector environments."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import FlattenObservation
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

import slipstream
from benchmarks.fresh_episodes import fresh_returns
from benchmarks.ours import device as ours
from benchmarks.peers.hockey import OracleGame
from benchmarks.peers.stepping import pace
from benchmarks.worker import side_by_side, stay_on

_EPISODES = 100  # training episodes averaged by a score
_TEST_SEED = 10_000  # seed of the first test episode, plus the training seed
_NUM_ENVS, _ROWS = 12, 256  # sizes of a fold of a study
_KINDS: dict[str, Any] = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}
_AGENTS = {"PPO": PPO, "DQN": DQN, "SAC": SAC}


def _make_forex() -> gymnasium.Env:
    """Make one forex-v0 environment: hourly EURUSD of 2017, 24 bars of two numbers."""
    import gym_anytrading  # noqa: F401  (registers it)

    return gymnasium.make("forex-v0", disable_env_checker=True)


def step_forex(kind: str, num_envs: int, seconds: float) -> dict[str, float]:
    """Measure steps per second of gym-anytrading's forex-v0, with actions drawn beforehand."""
    env: VecEnv = _KINDS[kind]([_make_forex] * num_envs)
    env.reset()
    actions = np.random.default_rng(0).integers(0, 2, (64, num_envs))
    rate = pace(env, actions, seconds)
    env.close()
    return {"steps_per_second": rate}


class _Iterations(BaseCallback):
    """Timer of whole iterations, rollout and update; stops at the first that began too late."""

    def __init__(self, seconds: float, warm_up: int) -> None:
        super().__init__()
        self.seconds, self.warm_up, self.iteration = seconds, warm_up, 0
        self.began = self.ended = 0.0
        self.first_step = self.last_step = 0

    def _on_rollout_start(self) -> None:
        self.ended, self.last_step = time.perf_counter(), self.num_timesteps
        if self.iteration == self.warm_up:
            self.began, self.first_step = self.ended, self.num_timesteps
        self.iteration += 1

    def _on_step(self) -> bool:
        enough = self.ended - self.began >= self.seconds
        return not (self.iteration > self.warm_up + 1 and enough)


def ppo_forex(
    kind: str,
    num_envs: int,
    warm_up: int,
    settings: Mapping[str, Any],
    seconds: float,
    threads: int,
) -> dict[str, float]:
    """Measure training steps per second of PPO over whole iterations, and updates per step.

    Args:
        kind: vector environment class.
        num_envs: number of sub-environments.
        warm_up: iterations that are not timed.
        settings: settings of PPO that differ from SB3's defaults.
        seconds: least duration of the measurement.
        threads: threads of PyTorch.
    """
    torch.set_num_threads(threads)
    env = VecMonitor(_KINDS[kind]([_make_forex] * num_envs))
    model = PPO("MlpPolicy", env, seed=1, device="cpu", **settings)
    watch = _Iterations(seconds, warm_up)
    model.learn(10**9, callback=watch)
    rate = (watch.last_step - watch.first_step) / (watch.ended - watch.began)
    env.close()
    return {"steps_per_second": rate, "utd_ratio": model.n_epochs / model.batch_size}


def ppo_faces(kind: str, num_envs: int, iterations: int) -> dict[str, float]:
    """Measure steps per second of PPO's `learn` on CartPole, end to end.

    Args:
        kind: "ours" for slipstream's adapter; "dummy" for SB3's DummyVecEnv, without the time in
            `step`, which is Amdahl's bound.
        num_envs: number of sub-environments.
        iterations: iterations of 64 steps each, after one warm-up iteration.
    """
    torch.set_num_threads(1)
    env: Any
    if kind == "ours":
        env = slipstream.make_adapter("sb3", "cartpole", num_envs)
    else:
        env = make_vec_env("CartPole-v1", n_envs=num_envs, seed=1)
    stepping, step = [0.0], env.step

    def timed(actions: Any) -> Any:
        began = time.perf_counter()
        came = step(actions)
        stepping[0] += time.perf_counter() - began
        return came

    env.step = timed
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=1024, n_epochs=4, seed=1, device="cpu")
    model.learn(64 * num_envs)
    stepping[0] = 0.0
    steps, began = 64 * num_envs * iterations, time.perf_counter()
    model.learn(steps)
    spent = time.perf_counter() - began - (stepping[0] if kind == "dummy" else 0.0)
    return {"steps_per_second": steps / spent}


def ppo_gym(env_id: str, steps: int, seed: int, episodes: int) -> dict[str, Any]:
    """Train PPO with its defaults, one environment under a Monitor, and score the last policy.

    Args:
        env_id: Gymnasium id. SB3 makes Discrete observations one-hot itself and rejects Tuple;
            Gymnasium's `FlattenObservation` does the same for those.
        steps: training steps.
        seed: seed of the training.
        episodes: number of fresh episodes, played with the most probable actions.
    """
    torch.set_num_threads(1)
    space = gymnasium.make(env_id).observation_space
    flatten = isinstance(space, gymnasium.spaces.Tuple | gymnasium.spaces.Dict)
    wrapper = FlattenObservation if flatten else None
    env = make_vec_env(env_id, n_envs=1, seed=seed, wrapper_class=wrapper)
    model = PPO("MlpPolicy", env, seed=seed, device="cpu")
    began = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - began
    made = (gymnasium.make(env_id) for _ in range(episodes))
    returns = fresh_returns(
        [wrapper(env) if wrapper else env for env in made],
        lambda rows: list(model.predict(np.stack(rows), deterministic=True)[0]),
        seed=seed,
    )
    return {"returns": returns, "seconds": seconds, "trained": model.num_timesteps}


def ppo_portfolio(
    folder: str, iterations: int, test_steps: int, threads: int, vector: str
) -> dict[str, float]:
    """Measure one fold of one trial with Optuna and PPO on 12 envs, as their users run it.

    Args:
        folder: arrays written by `PeerPrices.write`.
        iterations: iterations of 3,072 steps each, after one warm-up iteration.
        test_steps: total steps of all parallel test passes.
        threads: threads of PyTorch.
        vector: ``DummyVecEnv`` steps the envs one after another, ``SubprocVecEnv`` has a process
            for each.

    Returns:
        seconds to build everything, per training step, and per step of a deterministic pass.
    """
    import optuna

    torch.set_num_threads(threads)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    figures: dict[str, float] = {}

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 1e-4, 1e-3, log=True)
        figures.update(_fold(folder, vector, rate, iterations, test_steps))
        return 0.0

    optuna.create_study(direction="maximize").optimize(objective, n_trials=1)
    return figures


def _fold(
    folder: str, vector: str, rate: float, iterations: int, test_steps: int
) -> dict[str, float]:
    from portfolio_peer import PeerPrices, make_portfolio  # of the tests

    began = time.perf_counter()
    env = VecMonitor(_KINDS[vector]([partial(make_portfolio, folder)] * _NUM_ENVS))
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=rate,
        n_steps=_ROWS,
        batch_size=256,
        n_epochs=4,
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        max_grad_norm=0.5,
        seed=1,
        device="cpu",
    )
    built = time.perf_counter() - began
    model.learn(_NUM_ENVS * _ROWS)  # warms up
    steps, began = iterations * _NUM_ENVS * _ROWS, time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    training = (time.perf_counter() - began) / steps
    env.close()
    parts = range(len(PeerPrices.read(folder).test))
    tests = DummyVecEnv([partial(make_portfolio, folder, part) for part in parts])
    observations: Any = tests.reset()  # of one box
    began = time.perf_counter()
    for _ in range(test_steps):
        actions, _ = model.predict(observations, deterministic=True)
        observations, _, _, _ = tests.step(actions)
    testing = (time.perf_counter() - began) / (test_steps * len(parts))
    return {
        "build_seconds": built,
        "train_seconds_per_step": training,
        "test_seconds_per_step": testing,
    }


def mean_trial(processes: int, threads: int, seconds: float, **agent: Any) -> dict[str, float]:
    """Measure training steps per second of PPO on a fold of the mean trial of `cappuccino`.

    Its envs are slipstream's kernel, so that stepping takes almost no time.

    Args:
        processes: processes of a fold each, on their own core; their rates are added.
        threads: cores of a single process.
        seconds: least duration of the measurement, in whole iterations.
        agent: settings that replace the mean trial's.
    """
    asked = {"seconds": seconds, **agent}
    return side_by_side("peers.sb3.mean_trial_alone", asked, processes, threads)


def mean_trial_alone(cores: Sequence[int], seconds: float, **agent: Any) -> dict[str, float]:
    """Measure the same in this process, on the given cores."""
    stay_on(cores)
    torch.set_num_threads(len(cores))
    with ours.mean_trial(1, **agent) as (config, _):
        agent_config, num_envs = config["agent"], config["training"]["num_envs"]
        rules = {name: value for name, value in config["env"].items() if name != "name"}
        env = VecMonitor(slipstream.make_adapter("sb3", config["env"]["name"], num_envs, **rules))
        sizes = {
            "n_steps": agent_config["n_steps"],
            "batch_size": agent_config["batch_size"],
            "n_epochs": agent_config["n_epochs"],
        }
        network = {"net_arch": agent_config["net_arch"], "activation_fn": torch.nn.ReLU}
        model = PPO("MlpPolicy", env, seed=1, device="cpu", policy_kwargs=network, **sizes)
        watch = _Iterations(seconds, warm_up=0)
        model.learn(10**9, callback=watch)
    return {"steps_per_second": watch.last_step / (watch.ended - watch.began)}


class _Watch(BaseCallback):
    """Timer of the steps after the warm-up; stops after some seconds, or at a score.

    Args:
        seconds: duration of the measurement.
        warm_up: steps that are not timed.
        score: score to stop at: of the trailing 100 training episodes, or of a test.
        env: environment of the tests, whose time is not counted.
        due: steps between tests.
    """

    def __init__(
        self, seconds: float, warm_up: int, score: float, env: VecEnv | None, due: float
    ) -> None:
        super().__init__()
        self.seconds, self.warm_up, self.score = seconds, warm_up, score
        self.tests, self.due, self.reached = env, due, False
        self.began = self.ended = time.perf_counter()
        self.steps, self.untimed, self.tested, self.test_seconds = 0, 0, 0, 0.0
        self.returns: deque[float] = deque(maxlen=_EPISODES)

    def _on_step(self) -> bool:
        self.ended = time.perf_counter()
        if self.tests is not None:
            if self.num_timesteps >= (self.tested + 1) * self.due:
                self.tested += 1
                mean: Any = evaluate_policy(self.model, self.tests, 20, deterministic=True)[0]
                self.reached = mean >= self.score
                self.test_seconds += time.perf_counter() - self.ended
        elif self.score < math.inf:
            infos = self.locals["infos"]
            self.returns.extend(info["episode"]["r"] for info in infos if "episode" in info)
            full = len(self.returns) == _EPISODES
            self.reached = full and float(np.mean(self.returns)) >= self.score
        if self.num_timesteps <= self.warm_up:
            self.began, self.untimed = time.perf_counter(), self.num_timesteps
            return True
        self.steps = self.num_timesteps - self.untimed
        return not self.reached and self.ended - self.began < self.seconds


def learn(
    agent: str,
    game: str,
    settings: Mapping[str, Any],
    threads: int,
    net_arch: Sequence[int] = (),
    seconds: float = math.inf,
    score: float = math.inf,
    tests: int = 0,
    seed: int = 0,
    budget: int = 10**9,
    warm_up: int = 150,
    num_envs: int = 1,
    vector: str = "DummyVecEnv",
    **rounds: int,
) -> dict[str, float]:
    """Measure steps per second after the warm-up, and seconds of `learn`.

    Args:
        agent: PPO, DQN or SAC.
        game: Gymnasium id, or the tests' hockey oracle: "hockey2" has two levels of discrete
            actions, "hockey0" continuous ones.
        settings: settings of the agent that differ from SB3's defaults; ``lin_x`` falls linearly
            from x to 0.
        threads: threads of torch.
        net_arch: hidden layers; empty keeps SB3's default.
        seconds: duration of the measurement.
        score: score to stop at, of training episodes or of a test.
        tests: number of tests of 20 deterministic episodes; 0 uses training episodes.
        seed: seed of the training.
        budget: maximum number of steps.
        warm_up: steps that are not timed.
        num_envs: number of sub-environments.
        vector: SB3's vector environment class, or "ours" for slipstream's kernel.
        rounds: train_freq and gradient_steps.
    """
    torch.set_num_threads(threads)
    if game.startswith("hockey"):
        make = partial(OracleGame, int(game.removeprefix("hockey")))
        env: VecEnv = _KINDS[vector]([make] * num_envs)
    elif vector == "ours":
        env = slipstream.make_adapter("sb3", game, num_envs)
    else:
        env = make_vec_env(game, n_envs=num_envs, seed=seed, vec_env_cls=_KINDS[vector])
    kwargs = {name: _schedule(value) for name, value in {**settings, **rounds}.items()}
    if net_arch:
        kwargs["policy_kwargs"] = {"net_arch": list(net_arch)}
    model = _AGENTS[agent]("MlpPolicy", env, seed=seed, device="cpu", **kwargs)
    tested = make_vec_env(game, seed=_TEST_SEED + seed) if tests else None
    watch = _Watch(seconds, warm_up, score, tested, budget / max(tests, 1))
    began = time.perf_counter()
    model.learn(budget, callback=watch)
    ended = time.perf_counter() - watch.test_seconds
    return {
        "steps_per_second": watch.steps / (ended - watch.began),
        "seconds": ended - began,
        "steps": float(watch.num_timesteps),
        "reached": float(watch.reached),
    }


def _schedule(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("lin_"):
        highest = float(value.removeprefix("lin_"))
        return lambda left: highest * left
    return value
