"""Translation of names of other libraries, CLI options and moved modules.

Hyper-parameter names of Stable-Baselines3 come first. An error about an unknown key or algorithm
suggests the name from this table if it is valid at that place.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_ALGORITHMS = {
    **dict.fromkeys(("a2c", "a3c", "trpo", "reinforce"), ("ppo",)),
    **dict.fromkeys(("ddqn", "dddqn", "rainbow"), ("dqn",)),
    "ddpg": ("td3",),
}
_OTHER_LIBRARIES = {
    "gradient_steps": ("utd_ratio",),
    "lr": ("learning_rate", "agent.learning_rate"),
    "n_envs": ("num_envs",),
    "timesteps": ("total_timesteps",),
}
# Config keys, options and commands that were renamed before the first release.
_RENAMED = {
    "--accept": "--allow-issues",
    "--as": "--name",
    "--drawn": "--stochastic",
    "--fit": "--time-budget",
    "--limit": "--max-order",
    "--longest-gap": "--max-gap",
    "--once": "--run-once",
    "--time-is": "--timestamp-label",
    "--total-steps": "--total-timesteps",
    "agent.batch": "agent.batch_size",
    "agent.clip": "agent.clip_range",
    "agent.discount": "agent.gamma",
    "agent.entropy_coef": "agent.ent_coef",
    "agent.epochs": "agent.n_epochs",
    "agent.exploration_final": "agent.exploration_final_eps",
    "agent.exploration_initial": "agent.exploration_initial_eps",
    "agent.horizon": "agent.n_steps",
    "agent.initial_std": "agent.init_std",
    "agent.initial_temperature": "agent.init_ent_coef",
    "agent.minibatch": "agent.batch_size",
    "agent.replay_size": "agent.buffer_size",
    "agent.smoothing_limit": "agent.target_noise_clip",
    "agent.smoothing_noise": "agent.target_policy_noise",
    "agent.target_every": "agent.target_update_interval",
    "agent.target_rate": "agent.tau",
    "agent.temperature": "agent.ent_coef",
    "agent.train_every": "agent.train_freq",
    "agent.updates_per_step": "agent.utd_ratio",
    "agent.value_coef": "agent.vf_coef",
    "agent.widths": "agent.net_arch",
    "card": "model-card",
    "env.action_fineness": "env.num_action_levels",
    "env.band": "env.rebalance_threshold",
    "env.data.accept": "env.data.allow_issues",
    "env.data.time_is": "env.data.timestamp_label",
    "env.deal": "env.symbol_assignment",
    "env.flat_at": "env.flatten_at",
    "env.intrabar": "env.intrabar_fill",
    "env.keep": "env.puck_hold",
    "env.one": "env.player1",
    "env.reserve": "env.cash_reserve",
    "env.two": "env.player2",
    "evaluation.actions": "evaluation.deterministic",
    "exploit": "best-response",
    "paper NAME": "paper start NAME",
    "planted-crypto": "synthetic-crypto",
    "planted-forex": "synthetic-forex",
    "planted-reversion": "synthetic-reversion",
    "study.penalty": "study.fold_dispersion_penalty",
    "study.trials_in_flight": "study.max_concurrent_trials",
    "training.total_steps": "training.total_timesteps",
    "tune-machine": "autotune",
}
# Optional parts of kernel files that were renamed before the first release.
RENAMED_KERNEL_PARTS = {
    "ahead": "prefetch",
    "conclude": "finalize_episode",
    "picture": "render",
    "vary": "with_params",
    "SETTINGS": "DEFAULT_HYPERPARAMS",
}
# Members of the classes `Agent` and `Config` that were renamed before the first release.
_RENAMED_AGENT_MEMBERS = {
    "MOST_COPIES": "MAX_NUM_ENVS",
    "acting": "compiled_actor",
    "among_many": "for_study",
    "drain_notes": "drain_warnings",
    "give_way": "relax_sizes",
    "halves": "double_buffered_ranges",
    "learning": "compiled_learner",
    "wants": "experience_type",
}
_HYPERPARAMETERS = {
    "learning_rate",
    *(new.removeprefix("agent.") for new in _RENAMED.values() if new.startswith("agent.")),
}
# The first name that is valid at the place of the key is suggested.
_SUGGESTIONS: dict[str, tuple[str, ...]] = {
    **_ALGORITHMS,
    **{name: (name, f"agent.{name}") for name in sorted(_HYPERPARAMETERS)},
    **{
        old.rpartition(".")[2]: (new.rpartition(".")[2], new)
        for old, new in sorted(_RENAMED.items(), reverse=True)
    },
    **_OTHER_LIBRARIES,
}
_GYMNASIUM = re.compile(r"[\w/:.-]+-v\d+")


def field_name(name: str, known: Collection[str]) -> str | None:
    """Return the known name for a name of another library or in another case, or None."""
    lower = name.lower()
    same = next((candidate for candidate in known if candidate.lower() == lower), None)
    return same or next((new for new in _SUGGESTIONS.get(lower, ()) if new in known), None)


def renamed(path: str) -> str | None:
    """Return the present name of a config key (dotted), option or command that was renamed."""
    return _RENAMED.get(path)


def renamed_agent_member(name: str) -> str | None:
    """Return the present name of a member of `Agent` or its `Config` that was renamed."""
    return _RENAMED_AGENT_MEMBERS.get(name)


def agent_setting(name: str) -> str | None:
    """Return `agent.KEY` if a key written elsewhere is a hyper-parameter, else None."""
    key = next(iter(_SUGGESTIONS.get(name.lower(), ())), name)
    return f"agent.{key}" if key in _HYPERPARAMETERS else None


def is_gymnasium_id(name: str) -> bool:
    """Return true for names like Gymnasium ids, such as CartPole-v1."""
    return _GYMNASIUM.fullmatch(name) is not None


# CLI options and the corresponding Python arguments.
_ARGUMENTS = {
    **{"set": "overrides", "from": "start", "to": "stop", "opponent": "opponents"},
    **{"study-name": "study_name", "max-workers": "max_workers", "gpu-share": "gpu_share"},
    **{"group-size": "group_size", "force-deploy": "force_deploy", "num-envs": "num_envs"},
    **{name: name for name in ("out", "data", "symbols", "device", "trust", "games", "track")},
    **{name: name for name in ("storage", "workers", "cluster", "hours", "members", "seed")},
}
# An option and the gap before its value; quoted commands are unchanged.
_OPTION = re.compile(rf"`[^`]*`|--({'|'.join(_ARGUMENTS)})(?![\w-])( (?=['\"\d]|cpu|cuda))?")


def options_to_arguments(text: str) -> str:
    """Replace CLI options in a message by the arguments of Python functions."""
    return _OPTION.sub(_argument, text)


def _argument(match: re.Match[str]) -> str:
    if match[1] is not None:
        return f"{_ARGUMENTS[match[1]]}="
    quoted = match[0][1:-1]
    return match[0] if " " in quoted else f"`{options_to_arguments(quoted)}`"


_MODULES = {
    "adapters.cappuccino": "compat.cappuccino",
    "adapters.gymnasium_foreign": "adapters.gymnasium_vector",
    "adapters.hockey_player": "compat.hockey_project.vectorized_env",
    "adapters.hockey_project": "compat.hockey_project",
    "adapters.intraday": "compat.intraday",
    "agents": "rl.agents",
    "agents.options": "rl.agents.agent",
    "api.service": "compat.service",
    "core.checker": "kernels.source_lint",
    "core.conditions": "kernels.spec",
    "core.discover": "kernels.kernel_registry",
    "core.guard": "kernels.validation",
    "core.kernel": "kernels.kernel",
    "core.memory": "jit.alignment",
    "core.market_pass": "markets.backtest_spec",
    "core.observed": "rl.experience.replay.state_storage",
    "core.rules": "kernels.source_lint",
    "core.single": "jit.float32",
    "core.sources": "kernels.source_files",
    "core.spec": "kernels.spec",
    "environments": "training.environments",
    "environments.gymnasium_environment": "gym.gymnasium_environment",
    "environments.object_environment": "gym.object_environment",
    "environments.self_play": "games.self_play",
    "environments.vector_environment": "gym.vector_environment",
    "envs": "kernels.classic",
    "envs._market": "markets.shared_rules",
    "envs.forex": "markets.forex",
    "envs.hockey": "games.hockey",
    "envs.portfolio": "markets.portfolio",
    "envs.tictactoe": "games.tictactoe",
    "experience": "rl.experience",
    "features": "markets.features",
    "files": "core.storage",
    "files.best_policies": "rl.best_policies",
    "files.track": "training.episode_result",
    "live": "markets.live",
    "machine": "jit",
    "machine.products": "jit.gemm",
    "market": "markets.data",
    "market.checks": "markets.data",
    "market.folds": "markets.folds",
    "market.planted": "markets.synthetic",
    "market.planted.crypto": "markets.synthetic",
    "market.planted.forex": "markets.synthetic",
    "market.reading": "markets.data",
    "markets.synthetic.crypto": "markets.synthetic",
    "markets.synthetic.forex": "markets.synthetic",
    "nets": "rl.nets",
    "report.game": "games.report",
    "report.market": "markets.report",
    "report.portfolio": "markets.report",
    "report.run.page": "report.run_page",
    "runs": "training.runs",
    "runs.listeners": "training.callbacks",
    "runs.tournament": "games.ratings",
    "settings": "training.settings",
    "settings.vectorized": "compat.service",
    "studies.engine": "training.population",
    "training.tuning": "training.autotuner",
    "gym.process.scheduler": "gym.worker_config",
    "vector": "kernels",
    "vector.chosen": "gym.gymnasium_environment",
    "vector.foreign": "gym",
    "vector.kernel": "kernels",
    "vector.process": "gym.process",
    "vector.process.scheduler": "gym.worker_config",
}


def moved_module(error: BaseException) -> str | None:
    """Return a sentence with the new location of a moved slipstream module, for import errors."""
    if not isinstance(error, ImportError) or not (error.name or "").startswith("slipstream."):
        return None
    inner = re.match(r"cannot import name '(\w+)'", str(error))
    old = str(error.name) + (f".{inner[1]}" if inner else "")
    parts = old.split(".")[1:]
    for length in range(len(parts), 0, -1):
        new = _MODULES.get(".".join(parts[:length]))
        if new is not None:
            return f"`{old}` is `{'.'.join(['slipstream', new, *parts[length:]])}` now."
    return None
