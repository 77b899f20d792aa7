"""Requirements of a node: equal versions, sources and arrays; user files are staged."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from slipstream.core.errors import ConfigError, DataError, SlipstreamError
from slipstream.training.cluster import node_service as module
from slipstream.training.cluster.cluster import (
    ClusterOptions,
    Shared,
    arrays_digest,
    resolve_cluster,
)
from slipstream.training.cluster.node_service import (
    NodeCompatibility,
    NodeService,
    environment_payload,
    stage_files,
    work_for,
)
from slipstream.training.cluster.ray_cluster import connect
from slipstream.training.environments.factory import resolve_environment
from slipstream.training.settings.config import resolve

REINFORCE = Path(__file__).parents[2] / "samples/reinforce.py"


class Node(NodeService):
    """One that does nothing."""

    def answer(self, request, arrays):
        return b""


def loaded(name, **overrides):
    config = resolve(name, overrides)
    return config, resolve_environment(config.env_name, config.env_settings)


@pytest.fixture
def cartpole():
    config, environment = loaded("cartpole")
    return NodeCompatibility.from_environment(environment, config), environment


def test_the_same_node_has_everything(cartpole):
    owner, environment = cartpole
    assert NodeCompatibility.read(owner.payload()).compare(environment.data) == []
    assert owner.file is None and dict(owner.sources) == {}


@pytest.mark.parametrize("library", ["numba", "slipstream", "torch"])
def test_other_versions_are_named(cartpole, monkeypatch, library):
    owner, environment = cartpole
    versions = {**owner.versions, "torch": "2.0", library: "0.0.1"}
    monkeypatch.setattr(module, "_versions", lambda: {**owner.versions, "torch": "2.0"})
    with pytest.raises(ConfigError, match=rf"{library} .* has 0\.0\.1: other versions"):
        replace(owner, versions=versions).compare(environment.data)
    monkeypatch.setattr(module, "_versions", lambda: {"slipstream": "1"})
    replace(owner, versions={"slipstream": "1", "torch": "2.0"}).compare(environment.data)


def test_other_files_of_slipstream(cartpole):
    owner, environment = cartpole
    with pytest.raises(ConfigError, match="files of slipstream"):
        replace(owner, code="0").compare(environment.data)


def test_other_arrays(cartpole):
    owner, environment = cartpole
    with pytest.raises(DataError, match="sha256 differ"):
        owner.compare([one + 1 for one in environment.data])


def test_other_instruction_sets_are_named(cartpole, monkeypatch):
    owner, environment = cartpole
    theirs = [*owner.instructions, "avx9000"]
    (note,) = replace(owner, instructions=theirs, host="big").compare(environment.data)
    assert "avx9000" in note and "big" in note and "differ in bits" in note


def test_a_kernel_file_travels_with_what_it_imports(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "helpers").mkdir(parents=True)
    there.mkdir()
    (here / "helpers" / "__init__.py").write_text("")
    (here / "helpers" / "inner.py").write_text("STEP = 1.0\n")
    (here / "pole.py").write_text(
        "from slipstream.kernels.classic.cartpole import Config, Params, Data, STATE, load, reset, "
        "step, observe, spec\nimport helpers.inner\n"
    )
    monkeypatch.syspath_prepend(str(here))
    try:
        config, environment = loaded(str(here / "pole.py"))
        owner = NodeCompatibility.from_environment(environment, config)
        assert stage_files(environment.name, there) == there
        names = sorted(str(one.relative_to(there)) for one in there.rglob("*.py"))
        assert names == ["helpers/__init__.py", "helpers/inner.py", "pole.py"]
        assert owner.file == "pole.py" and {"pole.py", "helpers.inner"} <= set(owner.sources)
        monkeypatch.chdir(there)
        assert owner.compare(environment.data) == []
        (there / "pole.py").write_text((here / "pole.py").read_text() + "# edited\n")
        with pytest.raises(ConfigError, match=r"pole\.py on .* differ"):
            owner.compare(environment.data)
    finally:
        for name in ("helpers", "helpers.inner"):
            sys.modules.pop(name, None)


def test_an_agents_file_travels(tmp_path, monkeypatch):
    """A node that never saw it reads configs that name its classes."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    own = here / "mine.py"
    own.write_text(f"# {tmp_path}\n{REINFORCE.read_text()}")
    config, environment = loaded("cartpole", **{"agent.name": str(own)})
    owner = NodeCompatibility.read(
        NodeCompatibility.from_environment(environment, config).payload()
    )
    assert owner.file is None and owner.agent == "mine.py" and "mine.py" in owner.sources
    assert stage_files(environment.name, there, config.agent_name) == there
    sent, module_name = pickle.dumps(config), type(config.agent).__module__
    own.unlink()
    sys.modules.pop(module_name)
    monkeypatch.chdir(there)
    Node(owner.payload(), environment.data)
    assert pickle.loads(sent).agent == type(pickle.loads(sent).agent)()
    assert Path(sys.modules[module_name].__file__) == there / "mine.py"
    (there / "mine.py").write_text("from slipstream.rl.agents.agent import Agent\n")
    with pytest.raises(ConfigError, match=r"mine\.py.* on .* differ"):
        owner.compare(environment.data)


def test_two_files_of_one_name_are_refused(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "mine.py").write_text(REINFORCE.read_text())
    stage_files("cartpole", tmp_path / "files", str(REINFORCE))
    (tmp_path / "files" / "mine.py").write_text("# another one\n")
    with pytest.raises(ConfigError, match=r"both called mine\.py.*Rename one"):
        stage_files("cartpole", tmp_path / "files", str(tmp_path / "mine.py"))


def test_cards_are_asked_for(tmp_path):
    """GPUs of a cluster that counts them: each actor's GPU is its first visible one."""
    config, environment = loaded("cartpole", **{"training.device": "cuda:0"})
    assert work_for("one", "x:Y", environment, config, tmp_path).gpu
    with pytest.raises(ConfigError, match="device=cuda:0"):
        work_for("one", "x:Y", environment, config.with_training(device="cuda:1"), tmp_path)


def test_gymnasium_modules_travel_and_scripts_do_not(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "my_ponds.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv as Pond\n"
        "gymnasium.register('Pond-v0', entry_point='my_ponds:Pond', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(str(here))
    try:
        _, environment = loaded("gym:my_ponds:Pond-v0")
        stage_files(environment.name, there)
        assert [one.name for one in there.iterdir()] == ["my_ponds.py"]
        with pytest.raises(ConfigError, match="name the module: gym:my_module:Pond-v0"):
            stage_files("gym:Pond-v0", there)
        gymnasium.register("Here-v0", entry_point=lambda: None)
        with pytest.raises(ConfigError, match="registered by code of this process"):
            stage_files("gym:Here-v0", there)
    finally:
        for name in ("Pond-v0", "Here-v0"):
            gymnasium.registry.pop(name, None)
        sys.modules.pop("my_ponds", None)
    assert stage_files("gym:Acrobot-v1", there) is None and stage_files("cartpole", there) is None


def test_an_environment_arrives_as_it_was(cartpole):
    """Arrays that might be written are copied, so that the same loop is compiled."""
    owner, environment = cartpole
    stored = [one.copy() for one in environment.data]
    for one in stored:
        one.flags.writeable = False
    sent = environment_payload(environment, Shared.of(environment.data))
    found = Node(owner.payload(), stored).restored(sent, [])
    assert found.kernel is environment.kernel and found.spec == environment.spec
    assert found.loaded.params == environment.loaded.params
    for one, other in zip(found.data, environment.data, strict=True):
        assert np.array_equal(one, other) and one.flags.writeable == other.flags.writeable
    with pytest.raises(DataError, match="not those"):
        Node(owner.payload(), stored).restored({**sent, "digest": "0"}, [])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClusterOptions("somewhere"), "HOST:PORT"),
        (lambda: ClusterOptions("host:port"), "HOST:PORT"),
        (lambda: ClusterOptions("auto", max_workers=0), "max_workers=0"),
        (lambda: ClusterOptions("auto", gpu_share=1.5), "gpu_share=1.5"),
    ],
)
def test_bad_options(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
    assert resolve_cluster("auto") == ClusterOptions("auto") and resolve_cluster(None) is None


def test_ray_that_is_not_installed(cartpole, tmp_path, monkeypatch):
    owner, environment = cartpole
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    work = work_for("one", "x:Y", environment, resolve("cartpole"), tmp_path)
    with pytest.raises(SlipstreamError, match=r"-m pip install 'ray>=2"):
        connect(ClusterOptions("auto"), work, print)
    assert owner.env == "cartpole"


def test_a_digest_knows_types_shapes_and_bits():
    one = np.arange(4.0)
    others = (one.astype("f4"), one.reshape(2, 2), -one, one.view("i8"))
    digests = {arrays_digest([other]) for other in (one, *others)}
    assert len(digests) == 5 and arrays_digest([one.copy()]) == arrays_digest([one])
    assert arrays_digest([one, one]) != arrays_digest([np.concatenate([one, one])])
