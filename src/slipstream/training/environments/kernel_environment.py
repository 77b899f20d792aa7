"""Kernel environments: a kernel, built in or of a user's file, with its data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.errors import ConfigError
from slipstream.core.plugins import iter_offers
from slipstream.core.safe_io import payload_hash
from slipstream.core.storage.atomic_io import to_jsonable
from slipstream.core.timeline import FoldPlan
from slipstream.jit.cache import cannot_write, private_folder
from slipstream.kernels.env_checker import check_environment
from slipstream.kernels.kernel import Kernel, KernelData
from slipstream.kernels.kernel_registry import list_kernels, load_kernel
from slipstream.kernels.kernel_vector_env import KernelVectorEnv
from slipstream.kernels.loop import HOLD
from slipstream.kernels.source_files import source_hashes
from slipstream.kernels.spec import EnvSpec, check_market_spec
from slipstream.kernels.vector_env import VectorEnv
from slipstream.rl.experience.replay.state_storage import storage_bytes
from slipstream.training.environments.autotune_cache import Identity, Tunable
from slipstream.training.environments.environment import (
    MAX_EVAL_STEPS,
    Environment,
    EnvironmentKind,
    Part,
    Sections,
    for_gymnasium,
)

# Maximum per member. In 100,000 steps 12 envs reach 95 % of a market's optimum, 256 only 86 %.
MARKET_MAX_ENVS, KERNEL_MAX_ENVS = 64, 256


class RecordShares(NamedTuple):
    """Records and episode length of each of M members.

    Attributes:
        ranges: int64 [M, 2], first record and number of records.
        limits: int64 [M], time limit, 0 for none.
    """

    ranges: NDArray[np.int64]
    limits: NDArray[np.int64]

    @classmethod
    def from_counts(cls, counts: Sequence[int], limits: Sequence[int]) -> RecordShares:
        """Create from the number of consecutive records and the time limit of each member."""
        sizes = np.array(counts, np.int64)
        ranges = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)
        return cls(ranges, np.array(limits, np.int64))

    def from_num_envs(self, num_envs: int, max_steps: int = 0) -> dict[str, NDArray[np.int64]]:
        """Return arrays per environment, ordered by member; `max_steps` is the default limit."""
        envs_per_member = num_envs // len(self.ranges)
        limits = np.where(self.limits > 0, self.limits, max_steps)
        return {
            "param_ranges": np.repeat(self.ranges, envs_per_member, axis=0),
            "time_limits": np.repeat(limits, envs_per_member),
        }


@dataclass(frozen=True)
class KernelEnvironment(Tunable):
    """A kernel and its loaded data.

    Attributes:
        kernel: the kernel.
        loaded: the data.
        shares: records of each member; None if all members share all.
    """

    kind: KernelKind
    kernel: Kernel
    loaded: KernelData
    shares: RecordShares | None = None

    @classmethod
    def from_loaded(
        cls, kind: KernelKind, kernel: Kernel, loaded: KernelData, config: Config | None = None
    ) -> KernelEnvironment:
        """Create a kernel's environment with the spec of its first training record.

        Args:
            kind, kernel, loaded: see the class.
            config: section `env`; None to ignore keys that are not the kernel's own.
        """
        records = loaded.params.get("train") or next(iter(loaded.params.values()))
        spec = kernel.spec(records[0], loaded.data)
        check_market_spec(spec, kernel.module.__file__ or kernel.name)
        environment = environment_class(kernel)(kind, spec, kernel, loaded)
        return environment if config is None else environment.with_config(config)

    # Extensions of the section `env` by subclasses.

    @staticmethod
    def extended(kernel: Kernel) -> Kernel:
        """Return a kernel with additional keys in its Config."""
        return kernel

    def with_config(self, config: Config) -> Self:
        """Return a copy that applies the additional keys."""
        return self

    @property
    def has_params(self) -> bool:
        """True if environments in one batch may have different settings."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        return self.loaded.warnings

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.loaded.provenance

    @property
    def sources(self) -> dict[str, str]:
        """Return hashes of its source files."""
        return source_hashes(self.kernel.module)

    @property
    def metadata(self) -> dict[str, Any]:
        return {"name": self.kernel.name, "sources": self.sources, **to_jsonable(self.provenance)}

    @property
    def training_context(self) -> dict[str, Any]:
        declared, market = self.loaded.training_context, self.spec.market
        if declared is not None:
            return {**super().training_context, **to_jsonable(declared.as_mapping())}
        if market is None:
            return super().training_context
        context = {"bar_seconds": market.bar_seconds, "symbols": list(market.symbols)}
        return {**super().training_context, **to_jsonable(context)}

    @property
    def observed_bytes(self) -> int | None:
        """Return the bytes that a replay buffer stores instead of an observation, or None."""
        return storage_bytes(self.kernel, self.loaded, self.spec)

    @property
    def data(self) -> tuple[Any, ...]:
        """Arrays shared by all environments."""
        data: tuple[Any, ...] = self.loaded.data
        return data

    def with_data(self, data: Any) -> Self:
        """Return a copy that uses equal arrays already in memory."""
        return replace(self, loaded=replace(self.loaded, data=data))

    def without_rules(self) -> Self:
        """Return a copy without arrays and functions, to send to another process."""
        return replace(self, kernel=cast(Any, None), loaded=replace(self.loaded, data=None))

    def with_rules(self, kernel: Kernel, arrays: Sequence[NDArray[Any]]) -> Self:
        """Return the received environment with a kernel and arrays of this process."""
        loaded = replace(self.loaded, data=kernel.Data(*arrays))
        return replace(self, kernel=kernel, loaded=loaded)

    @property
    def identity(self) -> Identity:
        return Identity(self.name, {}, payload_hash(self.sources))

    def with_records(self, split: str, records: tuple[Any, ...]) -> Self:
        """Return a copy with other Params records in a split, such as other costs."""
        params = {**self.loaded.params, split: records}
        return replace(self, loaded=replace(self.loaded, params=params))

    def check(
        self, settings: Mapping[str, Any], log: Callable[[str], None] = lambda sentence: None
    ) -> bool | None:
        """See `Environment.check`.

        Passed checks are cached by sources, settings and data.
        """
        kernel, loaded = self.kernel, self.loaded
        if kernel.built_in:
            return None
        key = [self.sources, to_jsonable(settings), to_jsonable(loaded.provenance)]
        text = json.dumps(key, sort_keys=True, default=repr)
        passed = private_folder("checked") / hashlib.sha256(text.encode()).hexdigest()[:20]
        if passed.exists():
            return False
        check_environment(kernel, loaded=loaded)
        try:
            passed.touch()
        except OSError as error:
            raise cannot_write(passed.parent, error, "A passed check") from error
        log(f"{kernel.module.__file__} passed its check (run once per version).")
        return True

    def make_envs(
        self,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        backend: str = "auto",
        *,
        stagger: bool = True,
    ) -> VectorEnv:
        shares: dict[str, Any] = (
            {} if self.shares is None else self.shares.from_num_envs(len(seeds))
        )
        backend = self.kind.select_backend(backend)
        env = KernelVectorEnv(
            self.kernel, self.loaded, seeds, indices, backend=backend, stagger=stagger, **shares
        )
        return self.stepped(env, evaluation=False)

    def stepped(self, env: KernelVectorEnv, evaluation: bool) -> VectorEnv:
        """Return the stepper of new environments: themselves, or a wrapper of a subclass."""
        return env

    def make_eval_envs(
        self,
        split: str,
        num_envs: int,
        members: int = 1,
        backend: str = "auto",
        max_steps: int | None = MAX_EVAL_STEPS,
    ) -> VectorEnv:
        total = members * num_envs
        spec = self.spec_for(self.records(split))
        more: dict[str, Any] = {}
        if self.shares is not None:
            more = self.shares.from_num_envs(total, max_steps or 0)
        elif max_steps is not None and spec.market is None and spec.max_episode_steps is None:
            more = {"time_limits": np.full(total, max_steps)}
        env = KernelVectorEnv(
            self.kernel,
            self.loaded,
            np.zeros(total, np.uint64),
            np.tile(np.arange(num_envs, dtype=np.uint64), members),  # record number of a market
            split=self._split(split),
            backend=self.kind.select_backend(backend),
            stagger=False,
            time_limit=spec.market is None,
            autoreset_mode=HOLD,
            **more,
        )
        return self.stepped(env, evaluation=True)

    def batched(self, records: Sequence[tuple[Any, ...]]) -> Self:
        """Return one batch of several members, each with its own records.

        Args:
            records: [M], as returned by `records`.
        """
        counts = [len(member_records) for member_records in records]
        limits = [
            self.spec_for(member_records).max_episode_steps or 0 for member_records in records
        ]
        all_records = tuple(record for member_records in records for record in member_records)
        loaded, shares = (
            replace(self.loaded, params={"train": all_records}),
            RecordShares.from_counts(counts, limits),
        )
        spec = self.spec_for(records[0])
        return replace(self, spec=spec, loaded=loaded, shares=shares, measured=None)

    def records(self, split: str) -> tuple[Any, ...]:
        return self.loaded.params[self._split(split)]

    def _split(self, split: str) -> str:
        """Return the split; "train" for environments that are not markets.

        Raises:
            ConfigError: a market without this split.
        """
        if split in self.loaded.params:
            return split
        if self.spec.market is None:
            return "train"
        raise ConfigError(
            f"`{self.kernel.name}` has no split `{split}`, only {', '.join(self.loaded.params)}. "
            "Its `load`, or `load_folds` for a study, must return Params records of that name: "
            "docs/guides/custom-market.md lists the splits of a study."
        )

    def spec_for(self, records: tuple[Any, ...]) -> EnvSpec:
        """Return the spec of some records: folds differ in scales, settings in time limits."""
        return self.kernel.spec(records[0], self.loaded.data)

    def splits(self) -> tuple[str, ...]:
        return tuple(self.loaded.params)


@dataclass(frozen=True)
class KernelKind(EnvironmentKind):
    """Name of a kernel, or path of a user's file with one."""

    compiled: ClassVar[bool] = True
    backends: ClassVar[tuple[str, ...]] = ("auto", "compiled", "serial")
    resumable: ClassVar[bool] = True

    @property
    def kernel(self) -> Kernel:
        kernel = load_kernel(self.name)
        return environment_class(kernel).extended(kernel)

    @property
    def is_known(self) -> bool:
        return self.name.endswith(".py") or self.name in list_kernels()

    @property
    def model(self) -> type[Config]:
        return self.kernel.Config

    @property
    def short_name(self) -> str:
        return Path(self.name).stem if self.name.endswith(".py") else self.name

    @property
    def has_folds(self) -> bool:
        return self.kernel.load_folds is not None

    @property
    def code(self) -> Mapping[str, str | None]:
        return {str(Path(self.name).resolve()): None} if self.name.endswith(".py") else {}

    @property
    def module(self) -> ModuleType | None:
        return None if self.kernel.built_in else self.kernel.module

    def resolve_settings(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """See `EnvironmentKind.resolve_settings`; paths become absolute.

        Raises:
            ConfigError: unknown keys, bad values, or no prices for a market.
        """
        name = str(Path(self.name).resolve()) if self.name.endswith(".py") else self.name
        kernel = self.kernel
        for key, field in kernel.Config.model_fields.items():
            value, require_folder = (
                settings.get(key, {}),
                getattr(field.annotation, "require_folder", None),
            )
            if require_folder is not None and field.is_required() and isinstance(value, Mapping):
                require_folder(value, name)
        complete = kernel.configure(settings).model_dump(mode="json")
        data = complete["data"] if isinstance(complete.get("data"), dict) else {}
        folder = data.get("folder")
        if (
            isinstance(folder, str) and ":" not in folder.split("/")[0]
        ):  # `package:NAME` is not a path
            data["folder"] = str(Path(folder).expanduser().resolve())
        return name, complete

    def default_hyperparams(self, agent_name: str) -> Sections:
        by_agent: Mapping[str, Sections] | None = self.kernel.hook("DEFAULT_HYPERPARAMS")
        if by_agent is None:  # num_envs follows from budget and records
            return {"agent": for_gymnasium(self.name, agent_name)["agent"]}
        return by_agent.get(agent_name, {})

    def load(self, settings: Mapping[str, Any]) -> KernelEnvironment:
        config = self.kernel.configure(settings)
        return KernelEnvironment.from_loaded(self, self.kernel, self.kernel.load(config), config)

    def load_folds(
        self, settings: Mapping[str, Any], plan: FoldPlan, known: Sequence[Environment]
    ) -> KernelEnvironment:
        kernel, config = self.kernel, self.kernel.configure(settings)
        same_kernel = (e for e in known if isinstance(e, KernelEnvironment) and e.name == self.name)
        candidates = (
            (kernel.with_params(e.loaded, config) for e in same_kernel)
            if kernel.with_params
            else ()
        )
        loaded = next((data for data in candidates if data is not None), None)
        if loaded is None:
            load = kernel.load_folds
            loaded = kernel.load(config) if load is None else load(config, plan)
        environment = KernelEnvironment.from_loaded(self, kernel, loaded, config)
        market = environment.spec.market
        if market is None:
            return environment
        if kernel.load_folds is None:
            raise ConfigError(
                f"`{kernel.name}` has prices but no `load_folds`. A study needs folds separated by "
                "the length of an observation's history. Define it as in "
                "docs/guides/custom-market.md, or train with `slipstream train`."
            )
        market = replace(market, benchmark="benchmark" in environment.spec.trace)
        return replace(environment, spec=replace(environment.spec, market=market))

    def max_envs(self, spec: EnvSpec) -> tuple[int, str]:
        if spec.market is None:
            return KERNEL_MAX_ENVS, "a kernel"
        return MARKET_MAX_ENVS, "a market"

    def check_rules(self, settings: Mapping[str, Any], steps: int) -> None:
        check_environment(self.kernel, settings, steps=steps)


@dataclass(frozen=True)
class Timeline(Part):
    """Times of each record's steps, and the division of the data for a study.

    Attributes:
        kernel, loaded: the kernel, and the data with the records of each split.
    """

    kernel: Kernel
    loaded: KernelData

    @classmethod
    def from_environment(cls, environment: Environment) -> Self | None:
        if not isinstance(environment, KernelEnvironment):
            return None
        kernel, loaded = environment.kernel, environment.loaded
        timed = environment.spec.market is not None or "folds" in loaded.provenance
        return cls(kernel, loaded) if timed else None

    @property
    def folds(self) -> int | None:
        """Return the number of folds; None if the data are not divided."""
        divided = self.loaded.provenance.get("folds")
        return None if divided is None else len(divided["folds"])

    def ends(self, record: Any) -> NDArray[np.int64]:
        """Return the UTC seconds [n] after each step of an evaluation record."""
        assert self.kernel.timeline is not None
        return np.asarray(self.kernel.timeline(record, self.loaded.data))

    def market_returns(self, records: Iterable[Any]) -> dict[Any, NDArray[np.float64]] | None:
        """Return the market return of each bar by record; None unless backtests are one position
        each.
        """
        returns_by_record, declared = {}, self.kernel.hook("backtest_spec")
        for record in records:
            spec = None if declared is None else declared(record, self.loaded.data)
            returns = getattr(spec, "market_returns", None)
            if returns is None:
                return None
            returns_by_record[record] = returns
        return returns_by_record


def environment_class(kernel: Kernel) -> type[KernelEnvironment]:
    """Return the class of a kernel's environments, which may come from a plugin."""
    named = (kernel_class(kernel) for kernel_class in iter_offers("kernel_class"))
    return next(filter(None, named), KernelEnvironment)
