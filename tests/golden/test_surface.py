"""The script that compares what two trees offer finds commands, names and keys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("surface.py")
_PRINTED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import surface
print(json.dumps([dict(surface.helps()), dict(surface.names())]))
"""


@pytest.mark.slow
def test_every_command_and_public_name_is_found():
    command = [sys.executable, "-c", _PRINTED, str(SCRIPT.parent)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    helps, names = json.loads(done.stdout)
    assert {"slipstream", "slipstream train", "slipstream jobs add"} <= helps.keys()
    assert "--out" in helps["slipstream train"]
    assert names["AgentTrainingService.submit"].startswith("(self, config")
