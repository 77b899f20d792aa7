"""Calls between compiled modules: their numbers, errors that come through, found in the cache."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src"

# Two modules, of which the second one calls the first, whose name is a user's and not ASCII; it
# prints how many were in the cache.
CHILD = """
    import numpy as np
    from slipstream.jit import codegen

    CALLEE = '''
    def share(pair, i, floor):
        if pair[0][i] < floor:
            raise ValueError("below the floor")
        pair[1][i] += pair[0][i]
        return pair[0][i] / 2, i > 0
    '''
    CALLER = '''
    def total(pair, floor):
        x = 0.0
        for i in range(len(pair[0])):
            part, later = share((pair[0], pair[1]), i, floor)
            x += part + later
        return x
    '''
    pair = np.array([2.0, 4.0, 8.0]), np.zeros(3)
    callee = codegen.compile_module("call\\u00e9e", CALLEE, {"share": (pair, 0, 1.0)}, {}, {})
    caller = codegen.compile_module("caller", CALLER, {"total": (pair, 1.0)}, {}, {}, linked=callee)
    assert caller["total"](pair, 1) == 9.0 and pair[1].tolist() == [2.0, 4.0, 8.0]
    try:
        caller["total"](pair, 3.0)
        raise SystemExit("no error came through")
    except ValueError as error:
        assert str(error) == "below the floor"
    loops = callee["share"], caller["total"]
    print(sum(sum(loop.stats.cache_hits.values()) for loop in loops))
"""


def test_a_call_by_symbol_compiled_and_loaded(tmp_path):
    environment = {**os.environ, "SLIPSTREAM_CACHE": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    said = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CHILD)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        said.append(int(done.stdout))
    assert said == [0, 2]
