"""docs/guides/clusters.md: its Slurm script with stand-ins for the commands, its manifest as
YAML."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import yaml

PAGE = (Path(__file__).parents[1] / "docs/guides/clusters.md").read_text()


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return found[0]


def test_the_slurm_script(tmp_path):
    script = tmp_path / "study.sh"
    script.write_text(block("bash"))
    subprocess.run(["bash", "-n", script], check=True)
    log = tmp_path / "log"
    note = 'echo ${0##*/} ${#RAY_AUTH_TOKEN} "$RAY_AUTH_MODE" "$@"' + f" >> {shlex.quote(str(log))}"
    stubs = dict.fromkeys(("ray", "srun", "slipstream"), note)
    # Every node of a cluster has these two, but not every machine with these tests.
    stubs["python"] = f'exec {shlex.quote(sys.executable)} "$@"'
    stubs["hostname"] = '[ "$1" != --ip-address ] && echo one || echo 10.0.0.1 fe80::1'
    for name, line in stubs.items():
        stub = tmp_path / name
        stub.write_text(f"#!/bin/bash\n{line}\n")
        stub.chmod(0o755)
    slurm = {"SLURM_JOB_ID": "123456", "SLURM_CPUS_PER_TASK": "16", "SLURM_JOB_NUM_NODES": "4"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", "-eu", script], check=True, env={**os.environ, **slurm, "PATH": path})
    deadline = time.monotonic() + 60.0
    while len(called := sorted(log.read_text().splitlines())) < 4:  # `srun` is in the background
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [line.split()[0] for line in called] == ["ray", "ray", "slipstream", "srun"]
    assert all(line.split()[1:3] == ["64", "token"] for line in called)
    head, end, tune, others = called
    address = re.search(r"--node-ip-address (\S+) --port 23456 --num-cpus 16", head)
    assert address is not None and address[1] == "10.0.0.1" and end.endswith("stop")
    assert tune.endswith(f"--cluster {address[1]}:23456")
    assert "--nodes=3" in others and f"ray start --address {address[1]}:23456" in others


def test_the_manifest():
    found = yaml.safe_load(block("yaml"))
    head, workers = found["spec"]["headGroupSpec"], found["spec"]["workerGroupSpecs"][0]
    for group in (head, workers):
        (container,) = group["template"]["spec"]["containers"]
        assert {one["name"] for one in container["env"]} == {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    assert head["rayStartParams"]["num-cpus"] == "0"  # the owner's pod trains nothing
