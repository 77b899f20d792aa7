"""One thread a process, for test workers share the cores; no machine file but the tests' own.

Hypothesis draws the same examples everywhere and at any speed: what fails here fails there.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):  # no pipe here is a terminal
    os.environ.pop(_name, None)
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


@pytest.fixture(autouse=True, scope="session")
def machine_files(tmp_path_factory):
    """What a developer measured of this machine changes no test; child processes follow it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIPSTREAM_MACHINE", str(tmp_path_factory.mktemp("machine")))
        yield
