"""A kernel with its data: rules of ours, or of a user's file, that are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from slipstream.core.config import Config
from slipstream.core.discover import list_kernels
from slipstream.core.kernel import Kernel, Loaded
from slipstream.core.market_pass import check_account
from slipstream.core.reader import seal
from slipstream.core.sources import source_hashes
from slipstream.core.spec import Spec
from slipstream.environments.environment import LONGEST, Environment, Sections
from slipstream.environments.film import Film
from slipstream.environments.kernel_section import (
    check_divisible,
    complete_section,
    divided,
    window_section,
)
from slipstream.environments.machine_file import Identity
from slipstream.environments.own_kernel import check_own_kernel
from slipstream.environments.self_play.config import DEFAULTS
from slipstream.environments.self_play.game_kernel import game_kernel, seated, self_play_of
from slipstream.environments.self_play.opponents import Opponents
from slipstream.environments.self_play.outcomes import opponent_names
from slipstream.environments.self_play.seat_env import seat_spec
from slipstream.environments.self_play.self_play import SelfPlay
from slipstream.environments.shares import Shares
from slipstream.environments.suggested import for_gymnasium
from slipstream.experience.replay.kernel_fields import kept_bytes
from slipstream.files.files import plain
from slipstream.market.folds import FoldPlan
from slipstream.nets.policy import Policy
from slipstream.vector.contract import check_environment
from slipstream.vector.kernel_env import KernelVectorEnv
from slipstream.vector.loop import HOLD
from slipstream.vector.vector_env import VectorEnv

# Of a member at most. In 100,000 steps 12 copies reach 95 % of a market's optimum, 256 86 %.
MARKET_COPIES, KERNEL_COPIES = 64, 256


@dataclass(frozen=True)
class KernelEnvironment(Environment):
    """A kernel and what it has loaded.

    Attributes:
        kernel: the rules.
        loaded: the data.
        shares: what each member has of the records; None: all have all.
        self_play: of a game of two of which one seat is shown; None: all seats are.
        judge: what self-play is evaluated in, where the kernel suggests it; None: here.
    """

    kernel: Kernel
    loaded: Loaded
    shares: Shares | None = None
    self_play: SelfPlay | None = None
    judge: KernelEnvironment | None = None

    backends: ClassVar[tuple[str, ...]] = ("auto", "compiled", "serial")
    resumable: ClassVar[bool] = True

    @classmethod
    def of(cls, name: str, kernel: Kernel, loaded: Loaded, config: Config | None = None) -> Self:
        """With the spec of the first record that there is, which is training's.

        Args:
            name, kernel, loaded: see the class.
            config: whose `self_play` holds, where the kernel has one.
        """
        records = loaded.params.get("train") or next(iter(loaded.params.values()))
        spec = kernel.spec(records[0], loaded.data)
        check_account(spec, kernel.module.__file__ or kernel.name)
        asked = None if config is None else self_play_of(config)
        if asked is None:
            return cls(name, spec, kernel, loaded)
        seats = SelfPlay.of(asked, cls.short_name(name), spec)
        suggested = getattr(kernel.module, "EVALUATION", None)
        judge = None
        if suggested is not None and asked.evaluation is None and config is not None:
            judge = cls.load(name, config.model_dump() | suggested | {"self_play": None})
        return cls(name, seat_spec(spec), kernel, loaded, self_play=seats, judge=judge)

    @property
    def varied(self) -> bool:
        return self.self_play is None  # a batch of copies meets one line-up

    @classmethod
    def known(cls, name: str) -> bool:
        return name.endswith(".py") or name in list_kernels()

    @classmethod
    def model(cls, name: str) -> type[Config]:
        return game_kernel(name).Config

    @classmethod
    def section(cls, name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        if name.endswith(".py"):
            name = str(Path(name).resolve())
        return name, complete_section(name, game_kernel(name), settings)

    @classmethod
    def seated(cls, name: str, settings: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
        return seated(name, settings)

    @classmethod
    def short_name(cls, name: str) -> str:
        return Path(name).stem if name.endswith(".py") else name

    @classmethod
    def suggested(cls, name: str, agent_name: str) -> Sections:
        module = game_kernel(name).module
        if not hasattr(module, "SETTINGS"):  # copies follow from budget and records
            return {"agent": for_gymnasium(name, agent_name)["agent"]}
        by_agent: Mapping[str, Sections] = module.SETTINGS
        return by_agent.get(agent_name, {})

    @classmethod
    def divisible(cls, name: str) -> bool:
        return game_kernel(name).load_folds is not None

    @classmethod
    def load(cls, name: str, settings: Mapping[str, Any]) -> Self:
        kernel = game_kernel(name)
        config = kernel.configure(settings)
        return cls.of(name, kernel, kernel.load(config), config)

    @classmethod
    def load_folds(
        cls, name: str, settings: Mapping[str, Any], plan: FoldPlan, known: Sequence[Environment]
    ) -> Self:
        kernel = game_kernel(name)
        others = [e.loaded for e in known if isinstance(e, KernelEnvironment) and e.name == name]
        config = kernel.configure(settings)
        found = cls.of(name, kernel, divided(kernel, config, plan, others), config)
        market = found.spec.market
        if market is None:
            return found
        check_divisible(kernel)
        market = replace(market, benchmark="benchmark" in found.spec.trace)
        return replace(found, spec=replace(found.spec, market=market))

    @classmethod
    def load_window(
        cls,
        name: str,
        settings: Mapping[str, Any],
        *,
        data: str | Path | None = None,
        symbols: Sequence[str] | None = None,
        start: int | None = None,
        stop: int | None = None,
        carried: Mapping[str, Any] | None = None,
    ) -> Self:
        kernel = game_kernel(name)
        load_window = getattr(kernel.module, "load_window", None)
        if load_window is None:
            return super().load_window(name, settings)
        chosen = window_section(settings, data, symbols, carried)
        return cls.of(name, kernel, load_window(kernel.configure(chosen), start, stop))

    @classmethod
    def check_rules(cls, name: str, settings: Mapping[str, Any], steps: int) -> None:
        check_environment(game_kernel(name), settings, steps=steps)

    @classmethod
    def renderer(cls, name: str, settings: Mapping[str, Any]) -> Film:
        return Film(cls.load(name, settings))

    @property
    def kind(self) -> str:
        return "a kernel" if self.spec.market is None else "a market"

    @property
    def most_copies(self) -> int:
        return KERNEL_COPIES if self.spec.market is None else MARKET_COPIES

    @property
    def notes(self) -> tuple[str, ...]:
        return self.loaded.notes

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.loaded.provenance

    @property
    def sources(self) -> dict[str, str]:
        return source_hashes(self.kernel.module)

    @property
    def facts(self) -> dict[str, Any]:
        return {"name": self.kernel.name, "sources": self.sources, **plain(self.provenance)}

    @property
    def conditions(self) -> dict[str, Any]:
        declared, market = self.loaded.conditions, self.spec.market
        if declared is not None:
            return {**super().conditions, **plain(declared.as_mapping())}
        if market is None:
            return super().conditions
        own = {"bar_seconds": market.bar_seconds, "symbols": list(market.symbols)}
        return {**super().conditions, **plain(own)}

    @property
    def observed_bytes(self) -> int | None:
        return None if self.self_play else kept_bytes(self.kernel, self.loaded, self.spec)

    @property
    def data(self) -> tuple[Any, ...]:
        data: tuple[Any, ...] = self.loaded.data
        return data

    @property
    def opponent_names(self) -> Mapping[int, str]:
        met = self.judge or self
        return opponent_names(met.kernel.module, met.self_play)

    @property
    def folds(self) -> int | None:
        divided = self.provenance.get("folds")
        return None if divided is None else len(divided["folds"])

    def with_data(self, data: Any) -> KernelEnvironment:
        return replace(self, loaded=replace(self.loaded, data=data))

    @property
    def identity(self) -> Identity:
        return Identity(self.name, {}, seal(self.sources))

    def with_records(self, split: str, records: tuple[Any, ...]) -> Self:
        """The same with other Params records in a split: other costs, say."""
        params = {**self.loaded.params, split: records}
        return replace(self, loaded=replace(self.loaded, params=params))

    def check(
        self, settings: Mapping[str, Any], say: Callable[[str], None] = lambda sentence: None
    ) -> bool | None:
        own = not self.kernel.built_in
        return check_own_kernel(self.kernel, self.loaded, settings, say) if own else None

    def copies(
        self,
        seeds: NDArray[np.uint64],
        indices: NDArray[np.uint64],
        backend: str = "auto",
        *,
        stagger: bool = True,
    ) -> VectorEnv:
        own: dict[str, Any] = {} if self.shares is None else self.shares.dealt(len(seeds))
        backend = self.chosen_backend(backend)
        env = KernelVectorEnv(
            self.kernel, self.loaded, seeds, indices, backend=backend, stagger=stagger, **own
        )
        return env if self.self_play is None else self.self_play.seated(env)

    def evaluation(
        self,
        split: str,
        copies: int,
        members: int = 1,
        backend: str = "auto",
        longest: int | None = LONGEST,
    ) -> VectorEnv:
        if self.judge is not None:
            return self.judge.evaluation(split, copies, members, backend, longest)
        total = members * copies
        spec = self.spec_of(self.records(split))
        more: dict[str, Any] = {}
        if self.shares is not None:
            more = self.shares.dealt(total, longest or 0)
        elif longest is not None and spec.market is None and spec.max_episode_steps is None:
            more = {"limits": np.full(total, longest)}
        env = KernelVectorEnv(
            self.kernel,
            self.loaded,
            np.zeros(total, np.uint64),
            np.tile(np.arange(copies, dtype=np.uint64), members),  # of a market: its record
            split=split if split in self.loaded.params else "train",
            backend=self.chosen_backend(backend),
            stagger=False,
            time_limit=spec.market is None,
            at_end=HOLD,
            **more,
        )
        return env if self.self_play is None else self.self_play.evaluated(env)

    def with_members(self, policy: Policy) -> tuple[Environment, Opponents | None]:
        if self.self_play is None:
            return self, None
        seats, opponents = self.self_play.with_members(policy)
        return replace(self, self_play=seats), opponents

    def against(self, opponents: Mapping[str, float], deterministic: bool | None = None) -> Self:
        """The same game, whose evaluations meet other opponents; see `SelfPlayConfig`.

        Args:
            opponents: weight by name.
            deterministic: their policies take the most likely action; as configured unless given.

        Raises:
            ConfigError: one that is missing, of another game or shape; no game of two.
        """
        seats = self.self_play or SelfPlay.of(DEFAULTS, self.short_name(self.name), self.spec)
        own = seats.against(opponents, deterministic)
        return replace(self, spec=seat_spec(own.spec), self_play=own, judge=None)

    def joined(self, records: Sequence[tuple[Any, ...]]) -> KernelEnvironment:
        counts = [len(own) for own in records]
        limits = [self.spec_of(own).max_episode_steps or 0 for own in records]
        every = tuple(record for own in records for record in own)
        loaded, shares = replace(self.loaded, params={"train": every}), Shares.of(counts, limits)
        spec = self.spec_of(records[0])
        return replace(self, spec=spec, loaded=loaded, shares=shares, measured=None)

    def records(self, split: str) -> tuple[Any, ...]:
        return self.loaded.params[split if split in self.loaded.params else "train"]

    def spec_of(self, records: tuple[Any, ...]) -> Spec:
        spec = self.kernel.spec(records[0], self.loaded.data)
        return spec if self.self_play is None else seat_spec(spec)

    def splits(self) -> tuple[str, ...]:
        return tuple(self.loaded.params)

    def episode_names(self, split: str) -> list[str] | None:
        specs = [self.spec_of((record,)) for record in self.loaded.params.get(split, ())]
        return ["+".join(one.market.symbols) for one in specs if one.market is not None] or None

    def episodes(self, split: str, games: int) -> int:
        return games if self.spec.market is None else len(self.loaded.params[split])
