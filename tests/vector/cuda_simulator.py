"""Run with NUMBA_ENABLE_CUDASIM=1: every kernel's loop on simulated GPU threads, beside the oracle.

Arguments: paths of further kernel files. Prints the names of the kernels that agreed.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from numba import cuda

from slipstream.core.discover import load_kernel
from slipstream.vector.contract import compare
from slipstream.vector.kernel.compile import Loop
from slipstream.vector.kernel.copies import KernelVectorEnv
from slipstream.vector.kernel.cuda import device_module, examples
from slipstream.vector.kernel.loop import ENTRIES
from slipstream.vector.vector_env import Episodes, Finals, member_indices

warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)

BATCH = 10  # arrays that the loop of an unchecked kernel is handed


def simulated_loop(kernel, spec, blocks=2, threads=3):
    """The loop on simulated threads: what they compute together, not that the code compiles."""
    module = device_module(kernel, spec)

    def launch(name):
        configured = cuda.jit(getattr(module, name))[blocks, threads]
        # What is kept to name a user's mistakes is one thread's at a time: left out.
        return lambda *arguments: configured(
            *(a[:BATCH] if isinstance(a, tuple) else a for a in arguments)
        )

    return Loop(*(launch(name) for name in ENTRIES))


class Unordered(KernelVectorEnv):
    """Threads take slots in any order: what ended is put into the order (t, e)."""

    def drain_finals(self):
        finals = super().drain_finals()
        order = np.lexsort(finals.index.T[::-1])
        return Finals(finals.obs[order], finals.index[order])

    def drain_episodes(self):
        episodes = super().drain_episodes()
        order = np.lexsort((episodes.e, episodes.t))
        metrics = {name: values[order] for name, values in episodes.metrics.items()}
        return Episodes(*(values[order] for values in episodes[:4]), metrics)


def main():
    with tempfile.TemporaryDirectory() as folder:
        cases = list(examples(Path(folder)))
        for path in sys.argv[1:]:
            kernel = load_kernel(path)
            cases.append((kernel.name, kernel, kernel.load(kernel.Config())))
        for name, kernel, loaded in cases:
            rows = member_indices([2**63 + 1], 8)
            oracle, threads = [
                kind(kernel, loaded, *rows, backend="serial")
                for kind in (KernelVectorEnv, Unordered)
            ]
            threads._loop = simulated_loop(kernel, threads.spec)
            compare(oracle, threads, 20, 3, f"{name}: interpreter and simulated GPU")
            print(name)


main()
