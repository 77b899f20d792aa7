"""Steps of the GPU kit: each function returns its summary as `told`, with the figures behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from benchmarks.ours.device import phases
from slipstream.core.storage import checkpoint
from slipstream.kernels.spec import EnvSpec
from slipstream.markets.synthetic import SyntheticForex
from slipstream.rl.agents.ppo import torch_ppo
from slipstream.rl.agents.ppo.config import PPOConfig
from slipstream.rl.agents.ppo.torch_ppo import Coefficients, Rows, TorchPPO, learn
from slipstream.rl.agents.torch_agent import TorchGroup
from slipstream.rl.nets.torch_device import get_device
from slipstream.rl.nets.torch_distributions import make_distribution

_ROOT = Path(__file__).parents[2]
_COMMAND = (sys.executable, "-c", "from slipstream.cli import main; main()")
_TESTS = (
    *("test_device_meta", "test_torch_draws", "test_two_forms", "test_dqn_forms"),
    *("test_actor_critic_forms", "test_population_bits", "test_precision", "test_card_memory"),
    "test_card_halves",
)
_CHOICES, _INPUTS, _ROWS = 3, 32, 512

Answer = dict[str, Any]


def machine(device: str, out: str) -> Answer:
    """Return the GPU's name, memory and software."""
    words = f"Python {sys.version.split()[0]}, torch {torch.__version__}"
    words += f", CUDA {torch.version.cuda}, ROCm {torch.version.hip}"
    if get_device(device).type == "cpu":
        return {"told": f"dry run on the CPU; {words}"}
    facts = torch.cuda.get_device_properties(device)
    return {"told": f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB; {words}"}


def doctor(device: str, out: str) -> Answer:
    """Return the lines of `slipstream doctor` about GPUs and torch."""
    output = _run([*_COMMAND, "doctor"])
    named = [line for line in output.splitlines() if "torch" in line or "GPU" in line]
    return {"told": "\n".join(" ".join(line.split()) for line in named), "said": output}


def tests(device: str, out: str, files: Sequence[str] = _TESTS) -> Answer:
    """Run the agents' tests with the torch implementations on the device."""
    paths = [str(_ROOT / f"tests/engine/rl/{name}.py") for name in files]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(
        command,
        cwd=_ROOT,
        env={**os.environ, "SLIPSTREAM_TEST_DEVICE": device},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"told": "\n".join([lines[-1], *failed[:20]]), "said": done.stdout[-20_000:]}


def resume(device: str, out: str, steps: int = 40_000) -> Answer:
    """Train, kill and resume a run, and evaluate it; compare it with an uninterrupted run.

    Both runs are also compared with a run on the CPU. CPU runs are bit-identical; the step
    measures the difference on a GPU.
    """
    with tempfile.TemporaryDirectory(prefix="slipstream-card-") as folder:
        killed, whole, other = (Path(folder) / name for name in ("killed", "whole", "processor"))
        process = subprocess.Popen(
            _train(killed, device, steps), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not checkpoint.checkpoints(killed / "checkpoints") and process.poll() is None:
            time.sleep(0.01)
        process.kill()  # SIGKILL to this process's own child
        alive = process.wait() != 0
        _run([*_COMMAND, "resume", str(killed), "--no-report"])
        scored = _run([*_COMMAND, "evaluate", str(killed)]).strip().splitlines()
        _run(_train(whole, device, steps))
        _run(_train(other, "cpu", steps))
        states = [_state(path) for path in (killed, whole, other)]
    gaps = [_difference(states[0], state) for state in states[1:]]
    summary = (
        f"{'killed' if alive else 'NOT killed, because it ended before'}, resumed, scored "
        f"({scored[-1].strip()}); largest difference from an uninterrupted run "
        f"{gaps[0]:.3g}, from a CPU run {gaps[1]:.3g}"
    )
    return {"told": summary, "killed": alive, "gaps": gaps}


def _train(path: Path, device: str, steps: int) -> list[str]:
    settings = ("training.learner=torch", "training.checkpoint_every=0.02", "agent.n_steps=64")
    sets = [word for setting in settings for word in ("--set", setting)]
    return [
        *(*_COMMAND, "train", "cartpole", "--device", device, "--total-timesteps", str(steps)),
        *("--out", str(path), "--no-report", *sets),
    ]


def _state(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = checkpoint.load(checkpoint.checkpoints(run / "checkpoints")[-1])[0]
    return state


def _difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Return the largest difference between two agents' numbers."""
    names = [name for name in first if "parameters." in name]
    return max(float(np.abs(first[n].astype(float) - second[n].astype(float)).max()) for n in names)


def graph(device: str, out: str) -> Answer:
    """Test if a kernel launch of numba-cuda can be captured in torch's CUDA graph."""
    cuda: Any = import_module("numba.cuda")
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    x = torch.zeros(1024, device=device)
    theirs, array = cuda.external_stream(stream.cuda_stream), cuda.as_cuda_array(x)

    @cuda.jit  # type: ignore[untyped-decorator]
    def add_one(numbers: Any) -> None:
        i = cuda.grid(1)
        if i < numbers.size:
            numbers[i] += 1.0

    add_one[4, 256, theirs](array)  # compiles
    torch.cuda.synchronize(device)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        add_one[4, 256, theirs](array)
    for _ in range(2):
        captured.replay()
    torch.cuda.synchronize(device)
    right = bool((x == 3.0).all())
    return {"told": "yes" if right else f"NO: {x[0].item():g} where 3 was expected", "yes": right}


def minibatch(
    device: str,
    out: str,
    members: Sequence[int] = (1, 16, 96),
    widths: Sequence[int] = (64, 512, 1024, 1536),
    seconds: float = 1.0,
) -> Answer:
    """Measure a PPO minibatch of 512 rows a member in ms, eager and as a manual CUDA graph."""
    lines, figures = [], []
    for width in widths:
        for m in members:
            figure: Answer = {"members": m, "width": width}
            try:
                call = _minibatch(device, m, width)
                figure["eager"] = _milliseconds(call, seconds, device)
                figure["graph"] = _milliseconds(_captured(call), seconds, device)
            except RuntimeError as error:  # out of memory, no GPU, or capture failed
                figure["failed"] = str(error).splitlines()[0]
            figures.append(figure)
            parts = [f"{figure[n]:.3g} ms {n}" for n in ("eager", "graph") if n in figure]
            parts += [figure["failed"]] if "failed" in figure else []
            lines.append(f"M={m} {width}x{width}: {', '.join(parts)}")
    return {"told": "\n".join(lines), "figures": figures}


def _minibatch(device: str, members: int, width: int) -> Callable[[], Any]:
    """Return one minibatch of `learn` of PPO's torch implementation on random rows."""
    where, everyone = torch.device(device), slice(0, members)
    spec = EnvSpec(
        gymnasium.spaces.Box(-np.inf, np.inf, (_INPUTS,), np.float32),
        gymnasium.spaces.Discrete(_CHOICES),
    )
    config = PPOConfig(n_steps=_ROWS, batch_size=_ROWS, net_arch=(width, width))
    policy = TorchPPO(config, spec, range(members), 1).policy
    torch_group = TorchGroup(policy, 1, everyone, where)
    group, network = torch_group.group(policy.parameters), torch_group.network

    def model(weights: Any, rows: Rows) -> Any:
        head = network.head(weights, rows.x)
        return make_distribution(policy.actions, head, None, rows.mask), network.value(
            weights, rows.x
        )

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(members, _ROWS, *shape, device=where)

    rows = Rows(
        x=drawn(_INPUTS),
        mask=None,
        action=torch.randint(0, _CHOICES, (members, _ROWS, 1), device=where),
        log_prob=drawn() * 0.1 - 1.1,
        advantage=drawn(),
        target=drawn(),
        value=drawn(),
        valid=torch.ones(members, _ROWS, dtype=torch.bool, device=where),
    )
    numbers = (0.2, 0.01, 0.5, 0.99, 0.95, 3e-4, 1e-5, 0.5, float("inf"))
    c = Coefficients(*(torch.full((members,), x, device=where) for x in numbers))
    order = torch.arange(_ROWS, device=where).expand(members, _ROWS).contiguous()
    return partial(learn, group, model, rows, [order], _ROWS, c, True)


def _captured(call: Callable[[], Any]) -> Callable[[], None]:
    """Capture the call as a CUDA graph, after warm-up calls on a side stream as torch requires."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(beside)
    whole = torch.cuda.CUDAGraph()
    with torch.cuda.graph(whole):
        call()
    replay: Callable[[], None] = whole.replay
    return replay


def _milliseconds(call: Callable[[], Any], seconds: float, device: str) -> float:
    """Return the mean milliseconds of repeated calls; synchronize with the GPU at both ends."""

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    for _ in range(3):
        call()
    wait()
    calls, began = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() - began < seconds:
        for _ in range(10):
            call()
        calls += 10
        wait()
    return 1e3 * (time.perf_counter() - began) / calls


def halves(
    device: str, out: str, num_envs: int = 16_384, n_steps: int = 64, seconds: float = 5.0
) -> Answer:
    """Measure steps per second of PPO on synthetic prices with and without double buffering.

    With double buffering one half of the envs is stepped while the GPU acts for the other half
    (see `TorchPPO.double_buffered_ranges`).
    """
    figures = []
    with tempfile.TemporaryDirectory(prefix="slipstream-card-") as folder:
        SyntheticForex().write(folder, 60_000, 1)
        env = {"name": "forex", "data": {"folder": folder, "spread_pips": 0.5}}
        agent = {"net_arch": [256, 256], "n_steps": n_steps, "n_epochs": 1}
        for members in (1, 16):
            training = {"num_envs": num_envs // members, "members": members}
            config = {"env": env, "agent": agent, "training": training}
            figure = {"members": members, "copies": num_envs // members}
            for name, least in (("halves", 2), ("whole", 1 << 40)):
                vars(torch_ppo)["_MIN_DOUBLE_BUFFERED_ENVS"] = least
                figure[name] = phases(config, seconds, device)["steps_per_second"]
            figures.append(figure)
    lines = [
        f"M={f['members']} N={f['copies']}: {f['halves']:,.0f} steps/s in halves, "
        f"{f['whole']:,.0f} at once"
        for f in figures
    ]
    return {"told": "\n".join(lines), "figures": figures}


def suite(device: str, out: str) -> Answer:
    """Run `python -m benchmarks gpu` and write its rows to gpu.json."""
    file = str(Path(out) / "gpu.json")
    output = _run([sys.executable, "-m", "benchmarks", "gpu", "--json", file])
    return {
        "told": "Nothing was measured" if "Nothing was" in output else f"see {file}",
        "said": output,
    }


def _run(command: Sequence[str]) -> str:
    """Return the output of a command; raise an error with its last lines if it fails."""
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout
