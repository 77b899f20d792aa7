"""Process that runs Ray; Ray is replaced by a stub."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from multiprocessing import Pipe
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.training import cluster as package
from slipstream.training.cluster.cluster import ClusterOptions, ClusterWork

NAME = f"{package.__name__}.ray_process"


class RayError(Exception):
    """Ray's."""


class RayTaskError(RayError):
    """Raised by what an actor does."""


class Actor:
    """Says what a test put down for it; one that has nothing left to say is silent."""

    def __init__(self, hello, *answers):
        self.hello, self.answers = self.method(lambda: hello), list(answers)
        self.answer = self.method(lambda request, *arrays: iter(self.answers.pop(0)))

    @staticmethod
    def method(call):
        made = SimpleNamespace(remote=call)
        return SimpleNamespace(remote=call, options=lambda **how: made)


@pytest.fixture
def module(monkeypatch):
    """The program, which was never imported with the real Ray."""
    fake, errors = ModuleType("ray"), ModuleType("ray.exceptions")
    errors.RayError, errors.RayTaskError = RayError, RayTaskError
    fake.alive, fake.cores, fake.killed = {"a"}, 2.0, []
    fake.nodes = lambda: [
        {"NodeID": n, "Alive": n in fake.alive, "Resources": {"CPU": fake.cores, "GPU": 1.0}}
        for n in ("a", "b")
    ]
    fake.cluster_resources = lambda: {"CPU": fake.cores}
    fake.wait = lambda found, timeout: ([one for one in found if one != "silent"], [])
    fake.kill, fake.put = fake.killed.append, lambda arrays: arrays

    def get(found):
        if isinstance(found, Exception):
            raise found
        return found

    fake.get = get
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    real = sys.modules.pop(NAME, None)
    found = importlib.import_module(NAME)
    monkeypatch.setattr(found, "_reserve_name", lambda name: "holder")
    monkeypatch.setattr(found, "_RETRY_SECONDS", 60.0)
    yield found
    del sys.modules[NAME]
    delattr(package, "ray_process")
    if real is not None:
        sys.modules[NAME] = package.ray_process = real


@pytest.fixture
def driver(module, monkeypatch):
    """One whose actors a test makes, and what the owner is told."""
    mine, theirs = Pipe()
    before, over, drivers = set(threading.enumerate()), threading.Event(), []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=over.wait, monotonic=time.monotonic))

    def make(*actors, **options):
        work = ClusterWork("one", "x:Y", b"", (), gpu=options.get("gpu_share", 1.0) < 1.0)
        made, left = module._Driver(theirs, ClusterOptions("auto", **options), work), list(actors)
        drivers.append(made)
        silent = Actor("silent")
        module.ray.get = lambda found, get=module.ray.get: (
            over.wait(60.0) if found == "silent" else get(found)
        )
        made.actor = lambda: left.pop(0) if left else silent
        return made

    def told(count):
        found = []
        while len(found) < count:
            assert mine.poll(10.0)
            found.append(mine.recv())
        assert not mine.poll(0.1)
        return found

    yield make, told
    for made in drivers:
        for number in list(made._slots):
            made.detach(number)
    over.set()
    for thread in set(threading.enumerate()) - before:  # a fork elsewhere is refused beside them
        thread.join(10.0)
        assert not thread.is_alive()


HELLO = ("a", "host", "", False, [])
ARRIVED = ("arrived", 0, "a", "host", [])


def test_an_actor_that_works(driver):
    make, told = driver
    said = [(False, b""), (False, b"news"), (True, b"answer")]
    made = make(Actor(HELLO, said, [(True, b"")]), max_workers=1)
    made._fill()
    assert ARRIVED in told(2)
    made.work(0, b"request", [])
    assert told(2) == [("message", 0, b"news", False), ("message", 0, b"answer", True)]
    made.work(0, b"request", [])
    assert told(1) == [("message", 0, b"", True)]


@pytest.mark.parametrize(
    ("answer", "alive", "how", "again"),
    [
        ([RayError("gone")], True, ("died (out of memory?)", "died"), True),
        ([RayError("gone")], False, ("went away with its node", "silent"), True),
        ([], True, ("died (out of memory?)", "died"), True),
        ([RayTaskError("a defect\nand its trace")], True, ("failed: a defect", "died"), False),
        ("silent", True, ("has not answered for 60 s", "silent"), False),
    ],
)
def test_an_actor_that_is_lost(driver, module, answer, alive, how, again):
    """Ray begins it anew where its process died, and another one is made where it is ended."""
    make, told = driver
    first, second = Actor(HELLO), Actor(HELLO)
    first.answer = Actor.method(lambda request: answer if answer == "silent" else iter(answer))
    made = make(first, second, max_workers=1)
    made._fill()
    told(2)
    if not alive:
        module.ray.alive.clear()
    made.work(0, b"request", [])
    assert told(2) == [("lost", 0, *how), ARRIVED]
    assert made._slots[0].handle is (first if again else second)
    assert (first in module.ray.killed) == (not again)


def test_an_actor_that_is_let_go(driver, module):
    make, told = driver
    first = Actor(HELLO)
    made = make(first, Actor(("b", "other", "", False, [])), max_workers=1)
    made._fill()
    told(2)
    made.detach(0)
    made.detach(0)
    made._fill()
    assert sorted(told(2)) == [("arrived", 1, "b", "other", []), ("capacity", 1, MANY)]
    assert first in module.ray.killed


MANY = "2 cores and 0 GPUs (nodes: 1)"


def test_as_many_actors_as_fit(driver, module):
    make, told = driver
    made = make()
    made._fill()
    assert told(1) == [("capacity", 2, MANY)] and len(made._slots) == 2
    module.ray.alive.add("b")
    made._fill()
    assert told(1)[0][1] == 4 and len(made._slots) == 4
    module.ray.alive.clear()
    made._fill()
    assert told(1)[0][1] == 0 and len(made._slots) == 4  # they wait for a node
    assert sum(make(gpu_share=0.5).capacity().values()) == 0
    module.ray.alive.add("a")
    assert make(gpu_share=0.9).capacity() == {"a": 1}


def test_a_refused_actor_keeps_its_seat(driver):
    """So no other one is placed there, and it does not count."""
    make, told = driver
    refused = Actor(("a", "old", "It has another numpy.", True, []))
    made = make(refused, Actor(HELLO), max_workers=1)
    made._fill()
    assert ("failed", 0, "old", "It has another numpy.", True) in told(2)
    made._fill()
    assert sorted(told(2))[0] == ("arrived", 1, "a", "host", [])


def test_an_object_store_that_is_full(driver, module):
    make, told = driver
    made = make(max_workers=1)

    def full(arrays):
        raise RayError("no room for 24 bytes")

    module.ray.put = full
    made.share("digest", [np.zeros(3)])
    ((name, why),) = told(1)
    assert name == "shared" and "no room for 24 bytes" in why and "--object-store-memory" in why
    with pytest.raises(ResourceError, match="no room for 24 bytes"):
        make()


@pytest.mark.parametrize("version", ["2.51.9", "2.61.0", "3.0.0"])
def test_another_version_of_ray(module, version):
    module.ray.__version__ = version
    with pytest.raises(ResourceError, match=rf"Ray {version} is installed.*2\.52 to 2\.60"):
        module._join(ClusterOptions("local"), ClusterWork("one", "x:Y", b"", ()))


def test_a_second_owner_is_refused(module, monkeypatch):
    def options(name, **more):
        assert name == "the study one"
        return SimpleNamespace(remote=remote)

    def remote():
        raise ValueError("the name is taken")

    monkeypatch.undo()
    monkeypatch.setattr(module, "_OWNER_SECONDS", 0.0)
    monkeypatch.setattr(module.ray, "remote", lambda kind: SimpleNamespace(options=options), False)
    with pytest.raises(ConfigError, match="Another process of this cluster works on the study one"):
        module._reserve_name("the study one")


class Service:
    """Made of nothing."""

    notes = ("a note",)

    def __init__(self, needs, arrays):
        if needs == b"refused":
            raise ConfigError("It has another numpy.")

    def answer(self, request, arrays):
        time.sleep(0.2)
        return request

    def updates(self):
        return b"news"


@pytest.mark.parametrize(
    ("service", "needs", "hello"),
    [
        (f"{__name__}:Service", b"", ("", False, ("a note",))),
        (f"{__name__}:Service", b"refused", ("It has another numpy.", True, ())),
        ("nowhere:X", b"", ("ModuleNotFoundError: No module named 'nowhere'", False, ())),
    ],
)
def test_an_actor_on_its_node(module, monkeypatch, service, needs, hello):
    context = SimpleNamespace(get_node_id=lambda: "a")
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context, False)
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.15)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Service.__module__])
    one = module.Process(service, needs, [])
    assert one.hello()[0] == "a" and one.hello()[2:] == hello
    if not hello[0]:
        assert list(one.answer(b"request")) == [(False, b"news"), (True, b"request")]
