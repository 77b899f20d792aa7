"""Machine: what a run or a study takes of this machine, looked at now and then.

No result depends on it. A look takes some 2 ms of processor, more with many processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.files.table import CsvTable, read

_SECONDS = 10.0  # between two looks


@dataclass(frozen=True)
class Machine:
    """What all processes of one command take, and what the machine's cards do; JSON-able.

    Attributes:
        cpu: percent of one core since the look before.
        memory: bytes; pages that processes share are counted once.
        gpu: percent, the mean of all cards; None: there is no card, or it does not tell.
        vram: bytes in use on all cards.
        watts: of all cards.
    """

    cpu: float = 0.0
    memory: int = 0
    gpu: float | None = None
    vram: int | None = None
    watts: float | None = None

    def columns(self) -> dict[str, float]:
        """What is known, under the names of `metrics.csv`, which say the units."""
        known = {
            "cpu_percent": round(self.cpu, 1),
            "memory_gib": round(self.memory / 2**30, 3),
            "gpu_percent": self.gpu,
            "vram_gib": None if self.vram is None else round(self.vram / 2**30, 3),
            "gpu_watts": self.watts,
        }
        return {name: value for name, value in known.items() if value is not None}

    def __str__(self) -> str:
        """``CPU 187 %  memory 1.2 GiB  no GPU``."""
        parts = [f"CPU {self.cpu:.0f} %", f"memory {self.memory / 2**30:.1f} GiB"]
        card = [f"GPU {self.gpu:.0f} %"] if self.gpu is not None else []
        card += [f"VRAM {self.vram / 2**30:.1f} GiB"] if self.vram is not None else []
        card += [f"{self.watts:.0f} W"] if self.watts is not None else []
        return "  ".join([*parts, *(card or ["no GPU"])])


WALL = "wall"  # column of the seconds at which a look was
COLUMNS = tuple(Machine(0.0, 0, 0.0, 0, 0.0).columns())


class MachineTable:
    """`machine.csv` of a study: a row for each look, over all its sessions.

    Args:
        path: of the file.
        say: told when a damaged one was moved aside.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._table, self._seen, self._before = CsvTable(path, say), Machine(), 0.0
        with suppress(CheckpointError, ResourceError):
            walls = [one for one in read(path).get(WALL, ()) if isinstance(one, float)]
            self._before = max(walls, default=0.0)

    def add(self, machine: Machine, elapsed: float, **facts: str) -> None:
        """Writes a new look down; one that is known is passed over.

        Args:
            machine: what was seen.
            elapsed: seconds of this session.
            facts: other columns.
        """
        if machine is self._seen:
            return
        self._seen = machine
        row = {WALL: round(self._before + elapsed, 3), **facts, **machine.columns()}
        with suppress(ResourceError):  # nothing depends on it; what matters more will say it
            self._table.append([row])
            self._table.close()


class Cards:
    """NVIDIA cards of this machine, through NVML; none where there is no card or no driver."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        with suppress(Exception):  # no package, no driver, no card: all mean the same here
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def describe(self) -> list[dict[str, Any]]:
        """Name and memory of each."""
        found = []
        with suppress(Exception):
            for handle in self._handles:
                memory = float(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
                name = str(self._nvml.nvmlDeviceGetName(handle))
                found.append({"name": name, "memory_gib": round(memory / 2**30, 1)})
        return found

    def use(self) -> tuple[float | None, int | None, float | None]:
        """Mean percent, bytes in use and watts; None for what no card tells."""
        nvml = self._nvml
        percent = self._each(lambda card: nvml.nvmlDeviceGetUtilizationRates(card).gpu)
        held = self._each(lambda card: nvml.nvmlDeviceGetMemoryInfo(card).used)
        watts = self._each(lambda card: nvml.nvmlDeviceGetPowerUsage(card) / 1000)
        return (
            sum(percent) / len(percent) if percent else None,
            int(sum(held)) if held else None,
            round(sum(watts), 1) if watts else None,
        )

    def each(self) -> list[dict[str, Any]]:
        """Of each card its name, percent in use, bytes held and had, watts; None: it tells not."""
        nvml = self._nvml
        asks: dict[str, Callable[[Any], Any]] = {
            "name": lambda card: str(nvml.nvmlDeviceGetName(card)),
            "percent": lambda card: float(nvml.nvmlDeviceGetUtilizationRates(card).gpu),
            "vram": lambda card: int(nvml.nvmlDeviceGetMemoryInfo(card).used),
            "vram_total": lambda card: int(nvml.nvmlDeviceGetMemoryInfo(card).total),
            "watts": lambda card: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
        }
        found = []
        for number, card in enumerate(self._handles):
            told: dict[str, Any] = dict.fromkeys(asks) | {"name": f"card {number}"}
            for name, ask in asks.items():
                with suppress(Exception):
                    told[name] = ask(card)
            found.append(told)
        return found

    def _each(self, ask: Callable[[Any], float]) -> list[float]:
        """Answers of the cards that have one: parts of a card (MIG) tell no use, say."""
        found = []
        for handle in self._handles:
            with suppress(Exception):
                found.append(float(ask(handle)))
        return found


class MachineSampler:
    """Looks at this process, all below it and the cards, at most every 10 seconds.

    Args:
        clock: seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._cards = clock, Cards()
        self._looked: float | None = None
        self._machine = Machine()
        self._before = clock(), self._processes()[0]

    def look(self) -> Machine:
        """What was last seen; it is the same object until there is a new look."""
        now = self._clock()
        if self._looked is not None and now - self._looked < _SECONDS:
            return self._machine
        self._looked = now
        seconds, memory = self._processes(memory=True)
        began, spent = self._before
        cpu = 100 * max(0.0, seconds - spent) / max(now - began, 1e-3)
        self._before = now, seconds
        self._machine = Machine(cpu, memory, *self._cards.use())
        return self._machine

    def _processes(self, memory: bool = False) -> tuple[float, int]:
        """Processor seconds of all processes, ended ones among them, and bytes of the living."""
        seconds, held = 0.0, 0
        with suppress(psutil.Error):
            me = psutil.Process()
            for one in (me, *me.children(recursive=True)):
                with suppress(psutil.Error, OSError):  # it ended meanwhile
                    # Who has ended is counted by its parent: workers of a study live shortly.
                    seconds += sum(one.cpu_times()[:4])
                    if memory:
                        full = one.memory_full_info()
                        held += int(getattr(full, "pss", 0) or full.rss)
        return seconds, held
