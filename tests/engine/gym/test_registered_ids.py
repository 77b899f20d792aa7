"""Ids that the main program registered can be made by functions in worker processes."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import pathlib
import sys

import gymnasium as gym
import slipstream


class Own(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


gym.register(id="Own-v0", entry_point=Own)
pathlib.Path("elsewhere").mkdir(exist_ok=True)
pathlib.Path("elsewhere/unseen.py").write_text("class Unseen: pass")
sys.path.append("elsewhere")
from unseen import Unseen

gym.register(id="Unseen-v0", entry_point=Unseen)  # of a module that workers cannot import
gym.register(id="Late-v0", entry_point=Own, kwargs={"other": Unseen})
sys.path.remove("elsewhere")
if __name__ == "__main__":
    by_function = slipstream.register(lambda: gym.make("Own-v0"), "own")
    for name in ("gym:Own-v0", by_function):
        with slipstream.make_vec(name, num_envs=2, backend="process") as env:
            print(name, env.reset(seed=1).shape)
"""


def test_functions_in_workers_make_ids_of_the_main_program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["gym:Own-v0 (2, 2)", "object:own (2, 2)"]
    assert "Overriding" not in done.stderr


OWN = PROGRAM[PROGRAM.index("class Own") : PROGRAM.index("gym.register")]
MODULE = (
    "import gymnasium as gym\n"
    + OWN
    + """
gym.register(id="Own-v0", entry_point="own_env:Own")
"""
)


def test_workers_do_not_warn_of_ids_that_a_module_registers_in_each_of_them(tmp_path):
    (tmp_path / "own_env.py").write_text(MODULE, encoding="utf-8")
    program = (
        "import slipstream\n"
        "if __name__ == '__main__':\n"
        "    with slipstream.make_vec('gym:own_env:Own-v0', 4, backend='process') as env:\n"
        "        print(env.reset(seed=1).shape)\n"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "(4, 2)", done.stderr
    assert "Overriding" not in done.stderr
