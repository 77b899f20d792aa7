"""Installations without the extras `torch` and `scipy`: what needs them names the extra."""

import subprocess
import sys
import textwrap
from importlib import metadata

from slipstream.core.storage import provenance

_HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == HIDDEN:
            raise ModuleNotFoundError(f"No module named {HIDDEN!r}", name=HIDDEN)

sys.meta_path.insert(0, Hide())
"""


def without_torch(code, hidden="torch"):
    done = subprocess.run(
        [sys.executable, "-c", f"HIDDEN = {hidden!r}" + _HIDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_from_training_to_its_report(tmp_path):
    said = without_torch(
        f"""
        import numpy as np
        import slipstream

        out = {str(tmp_path / "run")!r}
        run = slipstream.train(
            "pendulum", members=2, num_envs=4, total_timesteps=2_048, out=out, log=lambda _: None,
            shards=2,
        )
        policy = slipstream.load_policy(run)
        assert np.isfinite(policy.act(np.zeros(3, np.float32), deterministic=False)).all()
        unwanted = ("torch", "polars", "scipy.linalg", "scipy.stats")
        found = [name for name in sys.modules if name.startswith(unwanted)]
        slipstream.write_model_card(run)
        assert "scipy.stats" not in sys.modules
        print((run.path / "report.html").exists(), found)
        """
    )
    assert said.split() == ["True", "[]"]


def test_images_name_the_line_that_installs_it():
    said = without_torch(
        """
        import gymnasium
        import numpy as np
        from slipstream.core.errors import ResourceError
        from slipstream.kernels.spec import EnvSpec
        from slipstream.rl.nets.policy import Policy

        image = gymnasium.spaces.Box(0, 255, (1, 10, 10), np.uint8)
        try:
            Policy([EnvSpec(image, gymnasium.spaces.Discrete(2))], [0])
        except ResourceError as error:
            print(error)
        """
    )
    assert "images" in said and "pip install 'torch>=" in said


def test_samplers_name_scipy_and_nothing_else_needs_it(smallest_study, tmp_path):
    told = without_torch(
        f"""
        import slipstream
        from slipstream.core.errors import ResourceError

        config = {smallest_study!r}
        for sampler in ("gp", "qmc", "tpe"):
            config["study"]["sampler"] = sampler
            try:
                slipstream.tune(config, study_name={str(tmp_path)!r} + "/" + sampler)
            except ResourceError as error:
                print(error)
        """,
        hidden="scipy",
    )
    for sampler in ("gp", "qmc"):
        assert f"`study.sampler: {sampler}` needs scipy" in told
    assert told.count("pip install 'scipy>=") == 2


def test_its_version_is_named_where_it_is_installed(monkeypatch):
    installed = metadata.version

    def version(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    assert provenance.versions()["torch"]
    monkeypatch.setattr(metadata, "version", version)
    assert "torch" not in provenance.versions() and provenance.versions()["numba"]
