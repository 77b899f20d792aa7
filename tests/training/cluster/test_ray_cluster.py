"""Which nodes are used, and what is said of the others; Ray itself is a stand-in here."""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import Future
from types import ModuleType

import numpy as np
import pytest
from slipstream.training.processes.wire import pack

from slipstream.core.errors import ConfigError, ResourceError
from slipstream.training import processes
from slipstream.training.cluster.cluster import ClusterOptions, ClusterWork

LOCAL, NOTHING = ClusterOptions("local"), ClusterWork("one", "x:Y", b"", ())
REFUSED, FINE = pack({"refused": "It has another numpy."}), pack({"notes": []})


class Ray(ModuleType):
    """Cores of nodes by their names, and what actors that began there say; None: nothing yet."""

    def __init__(self):
        super().__init__("ray")
        self.cores, self.said = {}, {}

    def nodes(self):
        return [
            {"NodeID": n, "NodeManagerHostname": n, "Alive": True, "Resources": {"CPU": float(k)}}
            for n, k in self.cores.items()
        ]

    def wait(self, ready, timeout):
        return [one for one in ready if self.said[one] is not None], []

    def get(self, ready):
        if isinstance(self.said[ready], Exception):
            raise self.said[ready]
        return self.said[ready]


@pytest.fixture
def module(monkeypatch):
    """Ray's side of clusters, which was never imported with the real one."""
    kinds = {"ray.exceptions": "RayError"}
    kinds["ray.util.scheduling_strategies"] = "NodeAffinitySchedulingStrategy"
    for name, kind in kinds.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        setattr(sys.modules[name], kind, type(kind, (Exception,), {}))
    monkeypatch.setitem(sys.modules, "ray", Ray())
    names = ("ray_actor", "ray_cluster")
    real = {name: sys.modules.pop(f"{processes.__name__}.{name}", None) for name in names}
    yield importlib.import_module(f"{processes.__name__}.ray_cluster")
    for name, before in real.items():
        del sys.modules[f"{processes.__name__}.{name}"]
        delattr(processes, name)
        if before is not None:
            sys.modules[f"{processes.__name__}.{name}"] = before
            setattr(processes, name, before)


@pytest.fixture
def made(module):
    """A cluster that nobody entered, Ray, and what was said."""
    said = []

    class Cluster(module.RayCluster):
        def _start(self, node):
            node.actors.append(module.RayActor(None, node, node.name, self._forget))
            begun.append(node.name)

        def look(self):
            """What its thread does each second."""
            self._place()
            for actor in self._actors():
                if not actor.came:
                    self._welcome(actor)

    begun = []
    cluster = Cluster(ClusterOptions("auto"), NOTHING, said.append)
    return cluster, module.ray, said, begun


def test_a_node_that_is_refused_is_named_once_and_others_are_waited_for(made):
    cluster, ray, said, begun = made
    ray.cores, ray.said = {"old": 4, "new": 2}, {"old": REFUSED, "new": None}
    for _ in range(3):
        cluster.look()
        assert not cluster.arrivals()
    assert said == ["old is not used. It has another numpy."]
    ray.said["new"] = FINE
    cluster.look()
    assert [actor.node for actor in cluster.arrivals()] == ["new", "new"]
    assert sorted(begun) == ["new"] * 2 + ["old"] * 4


def test_nodes_that_are_all_refused_end_it(made):
    cluster, ray, _, _ = made
    ray.cores, ray.said = {"old": 1}, {"old": REFUSED}
    cluster.look()
    cluster.look()
    with pytest.raises(ResourceError, match=r"No worker came up.* tried 1 times.*another numpy"):
        cluster.arrivals()


def test_a_refusal_is_told_where_the_others_do_not_come_up_in_a_minute(made, module):
    cluster, ray, _, _ = made
    ray.cores, ray.said = {"old": 1, "slow": 1}, {"old": REFUSED, "slow": None}
    cluster.look()
    cluster.look()
    assert not cluster.arrivals()
    cluster._began -= module._ROOM_SECONDS + 1.0
    with pytest.raises(ResourceError, match=r"tried 1 times in \d+ s: It has another numpy"):
        cluster.arrivals()


def test_a_node_where_no_worker_comes_up_rests(made):
    cluster, ray, said, begun = made
    ray.cores, ray.said = {"bare": 2, "new": 1}, {"bare": OSError("no slipstream"), "new": FINE}
    for _ in range(9):
        cluster.look()
    assert len(cluster.arrivals()) == 1
    assert said == ["No worker comes up on bare (no slipstream); it is tried again every minute."]
    assert begun.count("bare") == 4  # not one more each second
    (bare,) = (node for node in cluster._nodes.values() if node.name == "bare")
    bare.rests, ray.said["bare"] = 0.0, FINE
    cluster.look()
    assert len(cluster.arrivals()) == 2


def test_a_worker_that_never_comes_up_ends_it_after_three_tries(made):
    cluster, ray, _, _ = made
    ray.cores, ray.said = {"bare": 1}, {"bare": OSError("no slipstream")}
    for _ in range(2):
        cluster.look()
        assert not cluster.arrivals()
    cluster.look()
    with pytest.raises(ResourceError, match=r"tried 3 times.* on bare: no slipstream"):
        cluster.arrivals()


def test_no_room_in_a_minute(made, module):
    cluster, ray, _, _ = made
    ray.cores = {"head": 0}
    cluster.look()
    assert not cluster.arrivals()
    cluster._began -= module._ROOM_SECONDS + 1.0
    with pytest.raises(ResourceError, match=r"no room for a worker for 6\d s.*nodes: 1"):
        cluster.arrivals()


def test_an_object_store_that_is_full(made, module):
    cluster, ray, _, _ = made

    def full(arrays):
        raise module.RayError("no room for 24 bytes")

    ray.put = full
    with pytest.raises(ResourceError, match=r"no room for 24 bytes.*--object-store-memory"):
        cluster.share([np.zeros(3)])


@pytest.mark.parametrize("version", ["2.51.9", "2.61.0", "3.0.0"])
def test_another_version_of_ray(module, version):
    module.ray.__version__ = version
    with pytest.raises(ResourceError, match=rf"Ray {version} is installed.*2\.52 to 2\.60"):
        module._join(LOCAL, NOTHING, print)


def test_a_process_that_uses_ray_itself(module):
    module.ray.__version__, module.ray.is_initialized = "2.60.0", lambda: True
    with pytest.raises(ConfigError, match=r"ray\.shutdown\(\) first"):
        module._join(LOCAL, NOTHING, print)


def test_a_second_owner_is_refused(module, monkeypatch):
    class Taken:
        def options(self, name, **more):
            assert name == "the study one"
            return self

        def remote(self):
            raise ValueError("the name is taken")

    monkeypatch.setattr(module, "_OWNER_SECONDS", 0.0)
    module.ray.remote = lambda kind: Taken()
    with pytest.raises(ConfigError, match="Another process of this cluster works on the study one"):
        module._own("the study one")


class Handle:
    """An actor of Ray, of which a test says what it answers."""

    def __init__(self):
        self.futures, self.asked = [], 0
        self.answer, self.news = self._method(self._answer), self._method(self._news)

    @staticmethod
    def _method(call):
        return type("Method", (), {"remote": staticmethod(call)})

    def _answer(self, request, *arrays):
        self.futures.append(Future())
        return type("Reference", (), {"future": lambda self, found=self.futures[-1]: found})()

    def _news(self):
        self.asked += 1
        return "news"


@pytest.fixture
def actor(made, module):
    """One that is at work, and Ray."""
    cluster, ray, _, _ = made
    ray.cores, ray.kill = {"there": 1}, lambda handle: None
    cluster._place()
    place = cluster._nodes["there"]
    made_actor = module.RayActor(Handle(), place, None, cluster._forget)
    assert made_actor.send(b"request") and made_actor.busy
    return made_actor, ray


def test_what_an_actor_says(actor):
    one, _ = actor
    one.handle.futures[0].set_result(b"answer")
    assert one.pipe.poll() and one.receive() == b"answer"
    assert not one.busy and one.place.answers == 1
    assert one.place.bytes == len(b"request") + len(b"answer")


@pytest.mark.parametrize(
    ("name", "alive", "how", "cause"),
    [
        ("ActorDiedError", True, "on there died: it was killed", "died"),
        ("ActorDiedError", False, "on there went away", "silent"),
        ("NodeDiedError", True, "on there went away", "silent"),
    ],
)
def test_an_actor_that_dies(actor, module, name, alive, how, cause):
    one, ray = actor
    if not alive:
        ray.cores.clear()
    one.handle.futures[0].set_exception(type(name, (module.RayError,), {})("it was killed"))
    assert one.pipe.poll()
    lost = one.receive()
    assert (lost.how, lost.cause) == (how, cause)
    assert one.over and one.place.losses == 1 and not one.send(b"more")


def test_an_actor_that_hangs(actor):
    """It is asked for news now and then; who says nothing for a minute is given up."""
    one, ray = actor
    one.look()
    assert one.handle.asked == 0
    one._heard -= 11.0
    ray.said["news"] = b"states"
    one.look()
    one.look()
    assert one.handle.asked == 1 and one.receive() == b"states" and one.busy
    one._heard -= 61.0
    ray.said["news"] = None
    one.look()
    one.look()
    lost = one.receive()
    assert lost.cause == "silent" and "on there has been silent for 61 s" in lost.how
    assert one.over and one.place.losses == 1


@pytest.mark.parametrize("answer", [b"", OSError("it was killed"), None])
def test_an_actor_with_nothing_to_do(actor, made, answer):
    """It is asked whether it is there; one that is not leaves its seat to another."""
    one, ray = actor
    one.place.actors.append(one)
    one.handle.futures[0].set_result(b"answer")
    one.receive()
    one.look()
    assert one.handle.asked == 0
    one._heard -= 31.0
    one.look()
    ray.said["news"] = answer
    if answer is None:
        one.look()
        assert not one.over
        one._heard -= 60.0
    one.look()
    assert one.handle.asked == 1 and one.over == (answer != b"")
    assert (one in one.place.actors) == (answer == b"") and one.place.losses == 0
    assert one.send(b"more") == (answer == b"")


def test_an_actor_that_is_given_work_is_not_let_go(actor):
    one, _ = actor
    one.end_idle()
    assert not one.over
