"""Monitoring of CPU, memory and GPU use of a run or a study.

No result depends on it. One sample takes about 2 ms of CPU time, more with many processes.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.storage.csv_table import CsvTable, read_table

_SECONDS = 10.0  # between two samples


@dataclass(frozen=True)
class ResourceUsage:
    """Resources used by all processes of one command, and GPU load; JSON-compatible.

    Attributes:
        cpu: percent of one core since the previous sample.
        memory: bytes; shared pages are counted once.
        gpu: percent, the mean of all GPUs; None without a GPU or without data.
        vram: bytes in use on all GPUs.
        watts: of all GPUs.
        cards: number of GPUs.
    """

    cpu: float = 0.0
    memory: int = 0
    gpu: float | None = None
    vram: int | None = None
    watts: float | None = None
    cards: int = 0

    def columns(self) -> dict[str, float]:
        """Return the known values under the column names of `metrics.csv`, which include units."""
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
        none = "GPU not measured" if self.cards else "no GPU"
        return "  ".join([*parts, *(card or [none])])


WALL = "wall"  # column with the time of a sample, seconds
COLUMNS = tuple(ResourceUsage(0.0, 0, 0.0, 0, 0.0).columns())


class ResourceTable:
    """`machine.csv` of a study: one row per sample, over all its sessions.

    Args:
        path: of the file.
        log: receives a message if a damaged file was moved aside.
    """

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._table, self._seen, self._before = CsvTable(path, log), ResourceUsage(), 0.0
        with suppress(CheckpointError, ResourceError):
            walls = [wall for wall in read_table(path).get(WALL, ()) if isinstance(wall, float)]
            self._before = max(walls, default=0.0)

    def add(self, machine: ResourceUsage, elapsed: float, **facts: str) -> None:
        """Append a new sample; a known one is skipped.

        Args:
            machine: the sample.
            elapsed: seconds of this session.
            facts: other columns.
        """
        if machine is self._seen:
            return
        self._seen = machine
        row = {WALL: round(self._before + elapsed, 3), **facts, **machine.columns()}
        with suppress(ResourceError):  # optional data; a full disk is reported elsewhere
            self._table.append([row])
            self._table.close()


Asks = Mapping[str, Callable[[Any], Any]]
_ASKED = ("name", "percent", "vram", "vram_total", "watts")
_ROCM_SECONDS = (
    60.0  # lifetime of a cached rocm-smi result: a call takes up to a second of CPU time
)
_ROCM_OPTIONS = ("--showproductname", "--showuse", "--showpower", "--showmeminfo", "vram", "--json")
_AMD_DEVICE = "/dev/kfd"  # of the driver that ROCm needs
_UNREAD = "AMD GPU, not measured: neither the package amdsmi nor the command rocm-smi works here"


class Gpus:
    """GPUs of this machine: NVIDIA by NVML, AMD by amdsmi or else rocm-smi."""

    def __init__(self) -> None:
        self._cards: list[Any] = []
        self._asks: Asks = {}
        for find in (_nvidia, _amdsmi, _rocm_smi, _unread):
            with suppress(Exception):  # no package, no driver or no GPU
                if not self._cards:
                    self._cards, self._asks = find()

    def describe(self) -> list[dict[str, Any]]:
        """Return name and memory of each GPU."""
        return [
            {"name": gpu["name"], "memory_gib": round(gpu["vram_total"] / 2**30, 1)}
            for gpu in self.query()
            if gpu["vram_total"] is not None
        ]

    def usage(self) -> tuple[float | None, int | None, float | None, int]:
        """Return mean percent, bytes in use, watts (each None if unknown) and number of GPUs."""
        gpus = self.query()
        percent, held, watts = (
            [gpu[name] for gpu in gpus if gpu[name] is not None]
            for name in ("percent", "vram", "watts")
        )
        return (
            sum(percent) / len(percent) if percent else None,
            sum(held) if held else None,
            round(sum(watts), 1) if watts else None,
            len(self._cards),
        )

    def query(self) -> list[dict[str, Any]]:
        """Return name, percent, bytes used and total, and watts of each GPU; None if unknown."""
        gpus = []
        for number, card in enumerate(self._cards):
            gpu: dict[str, Any] = dict.fromkeys(_ASKED) | {"name": f"GPU {number}"}
            for name, ask in self._asks.items():
                with suppress(Exception):  # MIG partitions have no load data, AMD may report "N/A"
                    gpu[name] = ask(card)
            gpus.append(gpu)
        return gpus


def _nvidia() -> tuple[list[Any], Asks]:
    import pynvml as nvml

    nvml.nvmlInit()
    cards = [nvml.nvmlDeviceGetHandleByIndex(k) for k in range(nvml.nvmlDeviceGetCount())]
    return cards, {
        "name": lambda card: str(nvml.nvmlDeviceGetName(card)),
        "percent": lambda card: float(nvml.nvmlDeviceGetUtilizationRates(card).gpu),
        "vram": lambda card: int(nvml.nvmlDeviceGetMemoryInfo(card).used),
        "vram_total": lambda card: int(nvml.nvmlDeviceGetMemoryInfo(card).total),
        "watts": lambda card: nvml.nvmlDeviceGetPowerUsage(card) / 1000,
    }


def _amdsmi() -> tuple[list[Any], Asks]:
    smi = import_module("amdsmi")
    smi.amdsmi_init()
    powers = ("average_socket_power", "current_socket_power")
    return smi.amdsmi_get_processor_handles(), {
        "name": lambda card: str(smi.amdsmi_get_gpu_asic_info(card)["market_name"]),
        "percent": lambda card: float(smi.amdsmi_get_gpu_activity(card)["gfx_activity"]),
        "vram": lambda card: int(smi.amdsmi_get_gpu_vram_usage(card)["vram_used"]) * 2**20,
        "vram_total": lambda card: int(smi.amdsmi_get_gpu_vram_usage(card)["vram_total"]) * 2**20,
        "watts": lambda card: _first(smi.amdsmi_get_power_info(card), *powers),
    }


def _rocm_smi() -> tuple[list[Any], Asks]:
    if shutil.which("rocm-smi") is None:
        return [], {}
    cards: dict[str, Mapping[str, Any]] = {}
    looked = -math.inf

    def look() -> dict[str, Mapping[str, Any]]:
        nonlocal looked
        if time.monotonic() - looked > _ROCM_SECONDS:
            looked = time.monotonic()
            cards.clear()
            command = ("rocm-smi", *_ROCM_OPTIONS)
            result = subprocess.run(command, capture_output=True, timeout=10, check=False)
            devices = json.loads(result.stdout)
            cards.update(
                {name: device for name, device in devices.items() if name.startswith("card")}
            )
        return cards

    kinds = ("Average", "Current Socket")
    powers = [f"{kind} Graphics Package Power (W)" for kind in kinds]
    return list(look()), {
        "name": lambda card: str(look()[card].get("Card Series") or look()[card]["Card series"]),
        "percent": lambda card: _first(look()[card], "GPU use (%)"),
        "vram": lambda card: int(_first(look()[card], "VRAM Total Used Memory (B)")),
        "vram_total": lambda card: int(_first(look()[card], "VRAM Total Memory (B)")),
        "watts": lambda card: _first(look()[card], *powers),
    }


def _unread() -> tuple[list[Any], Asks]:
    has_device = Path(_AMD_DEVICE).exists()
    return [_UNREAD] if has_device else [], {"name": str}


def _first(values: Mapping[str, Any], *names: str) -> float:
    """Return the first of these values that is a number; names differ between GPUs."""
    for name in names:
        with suppress(KeyError, TypeError, ValueError):
            return float(values[name])
    raise KeyError(names)


class ResourceSampler:
    """Sampler of this process, its descendants and the GPUs, at most every 10 seconds.

    Args:
        clock: seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._cards = clock, Gpus()
        self._looked: float | None = None
        self._machine = ResourceUsage()
        self._before = clock(), self._processes()[0]

    def sample(self) -> ResourceUsage:
        """Return the latest sample; the same object until there is a new one."""
        now = self._clock()
        if self._looked is not None and now - self._looked < _SECONDS:
            return self._machine
        self._looked = now
        seconds, memory = self._processes(memory=True)
        began, spent = self._before
        cpu = 100 * max(0.0, seconds - spent) / max(now - began, 1e-3)
        self._before = now, seconds
        self._machine = ResourceUsage(cpu, memory, *self._cards.usage())
        return self._machine

    def _processes(self, memory: bool = False) -> tuple[float, int]:
        """Return CPU seconds of all processes, including ended ones, and bytes of running ones."""
        seconds, held = 0.0, 0
        with suppress(psutil.Error):
            me = psutil.Process()
            for process in (me, *me.children(recursive=True)):
                with suppress(psutil.Error, OSError):  # the process has ended
                    # Children that ended count by their parent: study workers are short-lived.
                    seconds += sum(process.cpu_times()[:4])
                    if memory:
                        full = process.memory_full_info()
                        held += int(getattr(full, "pss", 0) or full.rss)
        return seconds, held
