"""Common behaviour of all adapters: `make_vec` and its arguments."""

from importlib.util import find_spec

import pytest

from slipstream.api.envs import ADAPTERS, make_adapter
from slipstream.core.errors import ConfigError

LIBRARIES = {"sb3": "stable_baselines3"}  # of faces that are not called as their library is
PEERS = ("sb3", "elegantrl", "pettingzoo")


@pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=pytest.mark.peers) if name in PEERS else name for name in ADAPTERS],
)
def test_every_face_is_made_by_the_same_arguments(library):
    if library != "envpool":  # its face needs no EnvPool
        pytest.importorskip(LIBRARIES.get(library, library))
    face = make_adapter(
        library, "cartpole", backend="serial", split="train", workers=None, max_steps=5
    )
    face.reset()
    face.close()
    face.close()
    with pytest.raises(ConfigError, match="max_stepz"):
        make_adapter(library, "cartpole", 1, backend="serial", max_stepz=5)


@pytest.mark.parametrize("library", ADAPTERS)
def test_every_face_is_a_file_with_make_vec(library):
    found = find_spec(f"slipstream.adapters.{ADAPTERS[library]}")
    assert found is not None and found.origin is not None
    with open(found.origin) as file:
        assert "\ndef make_vec(" in file.read()


def test_a_face_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"no adapter for 'dm_env'. Use one of: gymnasium, sb3"):
        make_adapter("dm_env", "cartpole")
