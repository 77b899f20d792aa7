"""The machine: what all processes take, what cards tell, and what looking costs."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from slipstream import api
from slipstream.core.storage import provenance, resource_monitor
from slipstream.core.storage.resource_monitor import COLUMNS, Gpus, ResourceSampler, ResourceUsage
from slipstream.dashboard.overview import describe_machine


def fake_nvml():
    """Two cards; the second is cut in parts (MIG), which tell neither use nor watts."""
    memory = [SimpleNamespace(total=80 * 2**30, used=one * 2**30) for one in (12, 3)]
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda card: f"card {card}",
        nvmlDeviceGetMemoryInfo=lambda card: memory[card],
        nvmlDeviceGetUtilizationRates=lambda card: [SimpleNamespace(gpu=37)][card],
        nvmlDeviceGetPowerUsage=lambda card: [310_400][card],
    )


@pytest.fixture
def nvml(monkeypatch):
    fake = fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_cards_tell_use_memory_and_watts(nvml):
    assert Gpus().usage() == (37.0, 15 * 2**30, 310.4, 2)
    assert provenance.machine_info()["gpus"] == [
        {"name": "card 0", "memory_gib": 80.0},
        {"name": "card 1", "memory_gib": 80.0},
    ]
    seen = ResourceSampler().sample()
    assert "GPU 37 %  VRAM 15.0 GiB  310 W" in str(seen)
    assert tuple(seen.columns()) == COLUMNS
    assert seen.columns()["vram_gib"] == 15.0 and seen.columns()["gpu_watts"] == 310.4


def test_each_card_tells_of_itself(nvml):
    first, second = Gpus().query()
    assert (first["name"], first["percent"], first["watts"]) == ("card 0", 37.0, 310.4)
    assert (first["vram"], first["vram_total"]) == (12 * 2**30, 80 * 2**30)
    assert (second["percent"], second["watts"], second["vram"]) == (None, None, 3 * 2**30)
    line = describe_machine(Gpus())
    assert line.endswith("card 0 37 % 12.0 GiB 310 W  card 1 3.0 GiB")


def fake_amdsmi():
    """Two cards; the second has neither use nor watts of an average."""
    used = [{"vram_used": held, "vram_total": 65_536} for held in (2_048, 1_024)]
    power = [
        {"average_socket_power": 300, "current_socket_power": "N/A"},
        {"average_socket_power": "N/A", "current_socket_power": 90},
    ]
    return SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: [0, 1],
        amdsmi_get_gpu_asic_info=lambda card: {"market_name": "MI300X"},
        amdsmi_get_gpu_activity=lambda card: {"gfx_activity": [55, "N/A"][card]},
        amdsmi_get_gpu_vram_usage=lambda card: used[card],
        amdsmi_get_power_info=lambda card: power[card],
    )


def test_amds_cards_are_read_by_amdsmi(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", fake_amdsmi())
    assert Gpus().usage() == (55.0, 3 * 2**30, 390.0, 2)
    assert Gpus().describe() == [{"name": "MI300X", "memory_gib": 64.0}] * 2
    assert describe_machine(Gpus()).endswith("MI300X 55 % 2.0 GiB 300 W  MI300X 1.0 GiB 90 W")


ROCM = {
    "card0": {
        "Card Series": "Radeon RX 7900 XTX",
        "GPU use (%)": "12",
        "VRAM Total Memory (B)": str(24 * 2**30),
        "VRAM Total Used Memory (B)": str(6 * 2**30),
        "Average Graphics Package Power (W)": "101.5",
    },
    "card1": {
        "Card series": "Radeon 680M",
        "GPU use (%)": "N/A",
        "VRAM Total Used Memory (B)": str(2**30),
        "Current Socket Graphics Package Power (W)": "9.5",
    },
    "system": {"Driver version": "6.7"},
}


@pytest.fixture
def rocm_smi(monkeypatch, tmp_path):
    """A command of that name that counts its calls, and neither package."""
    for name in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, name, None)
    command, calls = tmp_path / "rocm-smi", tmp_path / "calls"
    (tmp_path / "cards.json").write_text(json.dumps(ROCM))
    command.write_text(f"#!/bin/sh\necho call >> '{calls}'\ncat '{tmp_path}/cards.json'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return calls


def test_amds_cards_are_read_by_rocm_smi_where_amdsmi_is_missing(rocm_smi):
    cards = Gpus()
    assert cards.usage() == (12.0, 7 * 2**30, 111.0, 2)
    assert cards.describe() == [{"name": "Radeon RX 7900 XTX", "memory_gib": 24.0}]
    line = describe_machine(cards)
    assert line.endswith("Radeon RX 7900 XTX 12 % 6.0 GiB 102 W  Radeon 680M 1.0 GiB 10 W")
    assert len(rocm_smi.read_text().splitlines()) == 1


def test_a_rocm_smi_that_fails_is_no_card(rocm_smi):
    (rocm_smi.parent / "cards.json").write_text("ERROR: no driver")
    assert Gpus().query() == [] and Gpus().usage() == (None, None, None, 0)


def test_an_amd_card_that_nothing_can_read_is_named_as_not_measured(rocm_smi, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(resource_monitor, "_AMD_DEVICE", str(rocm_smi.parent))
    assert describe_machine(Gpus()).endswith(
        "neither the package amdsmi nor the command rocm-smi works here"
    )
    assert str(ResourceSampler().sample()).endswith("GPU not measured")
    assert Gpus().describe() == []


def test_a_card_that_falls_silent_ends_nothing(nvml):
    sampler = ResourceSampler()
    for name in ("UtilizationRates", "PowerUsage", "MemoryInfo"):
        setattr(nvml, f"nvmlDeviceGet{name}", lambda card: 1 / 0)  # the driver is gone
    assert str(sampler.sample()).endswith("GPU not measured")


def test_no_card_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setenv("PATH", "")
    seen = ResourceSampler().sample()
    assert (seen.gpu, seen.vram, seen.watts) == (None, None, None)
    assert str(seen).endswith("no GPU") and list(seen.columns()) == list(COLUMNS[:2])
    assert provenance.machine_info()["gpus"] == []


def test_it_looks_every_ten_seconds_at_most():
    now = [100.0]
    sampler = ResourceSampler(lambda: now[0])
    first = sampler.sample()
    now[0] += 9.9
    assert sampler.sample() is first
    now[0] += 0.2
    assert sampler.sample() is not first


def _work(pipe, block):
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    pipe.send(int(block.sum()))
    pipe.recv()
    os._exit(0)


def test_workers_count_also_after_their_end_and_shared_pages_once(exact_memory):
    now = [0.0]
    sampler = ResourceSampler(lambda: now[0])
    block = np.ones(2**26, np.uint8)  # 64 MiB that the workers share
    before = sampler._processes(memory=True)[1]
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in range(3)]
    workers = [fork.Process(target=_work, args=(end, block)) for _, end in pipes]
    for worker in workers:
        worker.start()
    for pipe, _ in pipes:
        pipe.recv()
    now[0] = 1.0
    seen = sampler.sample()
    assert seen.cpu >= 85  # percent of a core: 3 x 0.3 s within what the clock says was a second
    assert seen.memory - before < 2**27  # and not three times the block
    for pipe, _ in pipes:
        pipe.send(None)
    for worker in workers:
        worker.join()
    now[0] = 12.0
    assert sampler.sample().cpu < 50  # what the ended ones did counts once, not again


def test_a_run_writes_what_it_took(tmp_path):
    run = api.train(
        "cartpole",
        total_timesteps=8_000,
        out=tmp_path / "run",
        report=False,
        log=lambda sentence: None,
    )
    columns = run.metrics()
    taken = [value for value in columns["memory_gib"] if value is not None]
    assert 0 < len(taken) <= 3 and all(0.01 < value < 64 for value in taken)
    assert len(columns["cpu_percent"]) > len(taken)  # empty where nothing was looked at


def test_it_goes_through_json():
    seen = ResourceUsage(198.0, 1_300_000_000)
    assert ResourceUsage(**asdict(seen)) == seen
    assert str(seen) == "CPU 198 %  memory 1.2 GiB  no GPU"
