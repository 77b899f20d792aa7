"""DQN's update in plain torch: the speed of its products without a framework."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as f

from benchmarks.worker import steps_per_second

_ROWS = 1_000_000  # of the replay
_TARGET_EVERY = 2500


def dqn(
    inputs: int,
    net_arch: Sequence[int],
    choices: int,
    batch_size: int,
    threads: int,
    seconds: float,
    operations: float = 0.0,
) -> dict[str, float]:
    """Measure updates per second, one for each step, without stepping or acting.

    Args:
        inputs, net_arch, choices: shape of the network, with ReLU.
        batch_size: rows of an update, drawn from a full replay.
        threads: threads of torch.
        seconds: duration of the measurement.
        operations: operations of the networks' products in an update; `gflops` are those of a
            second.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)

    def network() -> nn.Sequential:
        sizes = itertools.pairwise([inputs, *net_arch, choices])
        layers = [module for a, b in sizes for module in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    online, target = network(), network()
    adam = torch.optim.Adam(online.parameters(), 1e-4, fused=True)
    seen, after = torch.randn(_ROWS, inputs), torch.randn(_ROWS, inputs)
    action, reward = torch.randint(choices, (_ROWS, 1)), torch.randn(_ROWS)
    goes_on, made = torch.ones(_ROWS), 0

    def update() -> int:
        nonlocal made
        if made % _TARGET_EVERY == 0:
            target.load_state_dict(online.state_dict())
        own = torch.randint(_ROWS, (batch_size,))
        with torch.no_grad():
            wanted = reward[own] + 0.99 * goes_on[own] * target(after[own]).amax(1)
        found = online(seen[own]).gather(1, action[own]).squeeze(1)
        adam.zero_grad()
        f.smooth_l1_loss(found, wanted).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        adam.step()
        made += 1
        return 1

    for _ in range(20):
        update()
    rate = steps_per_second(update, seconds)
    return {"steps_per_second": rate, "gflops": rate * operations / 1e9}
