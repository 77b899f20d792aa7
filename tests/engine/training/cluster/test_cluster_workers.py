"""The members of one run on a cluster: the weights of one machine, whoever is lost."""

from __future__ import annotations

import pytest
from fake_cluster import FakeCluster

from slipstream.core.errors import ResourceError
from slipstream.core.storage import checkpoint
from slipstream.core.storage.checkpoint import ReceivedChunks
from slipstream.core.storage.signals import Interrupted, request_stop
from slipstream.core.storage.status_file import cluster_part, read_status
from slipstream.training.callbacks.events import Updated
from slipstream.training.cluster import cluster_workers
from slipstream.training.cluster.cluster import ClusterOptions
from slipstream.training.runs.run import Run
from slipstream.training.settings.config import resolve
from slipstream.training.trainer import resume, train

SETTINGS = {
    "env": {"name": "cartpole", "max_steps": 50},
    "agent": {"n_steps": 32, "batch_size": 128, "n_epochs": 2},
    "training": {"num_envs": 8, "total_timesteps": 2_560, "checkpoint_every": 0.2, "members": 3},
    "evaluation": {"episodes": 10, "every": 0.5},
}
REPLAY = {
    **SETTINGS,
    "agent": {
        "name": "dqn",
        "net_arch": [16],
        "buffer_size": 1_000,
        "learning_starts": 64,
        "iteration": 4,
    },
}
LOCAL = ClusterOptions("local")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(cluster_workers, "_GATHER_SECONDS", 0.1)


@pytest.fixture
def clusters(monkeypatch):
    """Every cluster that was connected to; of two actors."""
    made = []

    def connect(options, work, say):
        made.append(FakeCluster(work, 2))
        return made[-1]

    monkeypatch.setattr(cluster_workers, "connect", connect)
    return made


def trained(folder, cluster=None, callbacks=(), settings=SETTINGS):
    run = Run.create(resolve(settings), folder, log=lambda sentence: None)
    try:
        train(run.config, run, callbacks, cluster=cluster)
    finally:
        run.close()
    return run


def everything(run):
    """All that a run goes on from, its best policies and what it says of itself."""
    state = checkpoint.load(checkpoint.checkpoints(run.path / "checkpoints")[-1])[0]
    best = [run.best.load(m)[0] for m in range(run.config.training.members)]
    facts = [{k: v for k, v in one.items() if k != "wall"} for one in run.result["members"]]
    return [{k: v.tobytes() for k, v in one.items()} for one in (state, *best)], facts


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return everything(trained(tmp_path_factory.mktemp("expected") / "run"))


def test_the_same_run(clusters, tmp_path, expected):
    run = trained(tmp_path / "run", LOCAL)
    assert everything(run) == expected
    assert [one.busy for one in clusters[0].actors] == [True, True]
    told = read_status(run.path).nodes
    assert [node["slots"] for node in told] == [1, 1] and all(node["answers"] for node in told)
    assert cluster_part(told[:1], segments=False).startswith("1 node, 1 slot, ")


@pytest.mark.parametrize("seconds", [0.0, pytest.param(1e9, marks=pytest.mark.slow)])
def test_lost_actors(clusters, tmp_path, expected, monkeypatch, seconds):
    """Others take over from the last states, or from the beginning, and make up for the rest."""
    monkeypatch.setattr(cluster_workers, "HAND_OVER_SECONDS", seconds)
    lost = []

    def lose(event):
        if isinstance(event, Updated) and len(lost) < 4:
            actor = next(one for one in clusters[0].actors[len(lost) :] if not one.released)
            actor.released = True  # idle: the next call finds it gone
            lost.append(actor)
            clusters[0].add()

    assert everything(trained(tmp_path / "run", LOCAL, [lose])) == expected
    assert len(lost) == 4


def test_lost_in_the_middle_of_a_call(clusters, tmp_path, expected):
    def lose(event):
        if isinstance(event, Updated) and len(clusters[0].actors) == 2:
            first, work = clusters[0].actors[0], clusters[0].actors[0].service

            class Dying:
                def answer(self, request, arrays):
                    first.lose()
                    return work.answer(request, arrays)

                leave = work.leave

            first.service = Dying()
            clusters[0].add()

    assert everything(trained(tmp_path / "run", LOCAL, [lose])) == expected


def test_a_node_that_does_not_come_back(clusters, tmp_path, expected):
    """The other one takes its members, too."""
    said = []

    def lose(event):
        if isinstance(event, Updated):
            clusters[0].actors[0].released = True

    run = Run.create(resolve(SETTINGS), tmp_path / "run", log=said.append)
    try:
        train(run.config, run, [lose], cluster=LOCAL)
    finally:
        run.close()
    assert everything(run) == expected and len(clusters[0].actors) == 2
    assert sum("another one continues" in sentence for sentence in said) == 1


def test_a_node_that_joins_late_takes_a_share(clusters, tmp_path, expected, monkeypatch):
    """One actor is left with everything, until others come."""
    monkeypatch.setattr(cluster_workers, "HAND_OVER_SECONDS", 0.0)

    def lose(event):
        if isinstance(event, Updated) and not clusters[0].actors[0].released:
            clusters[0].actors[0].released = True
        elif isinstance(event, Updated) and len(clusters[0].actors) == 2:
            assert len(clusters[0].actors[1].service._shards) == 2
            clusters[0].add(3)

    assert everything(trained(tmp_path / "run", LOCAL, [lose])) == expected
    shards = [len(actor.service._shards) for actor in clusters[0].actors[1:]]
    assert shards == [1, 1, 0, 0]


@pytest.mark.slow
def test_one_that_was_begun_anew_has_no_members(clusters, tmp_path, expected):
    """Ray begins an actor that died with nothing to do again, and nobody is told."""

    def forget(event):
        if isinstance(event, Updated) and clusters[0].actors[0].service._shards:
            first = clusters[0].actors[0]
            if len(clusters[0].actors) == 2:
                first.service._shards.clear()
                clusters[0].add()

    assert everything(trained(tmp_path / "run", LOCAL, [forget])) == expected


def test_lost_again_and_again(clusters, tmp_path):
    def lose(event):
        if isinstance(event, Updated):
            for one in clusters[0].actors:
                one.send = lambda request, shared=(): False
            clusters[0].actors[0].node = "broken"
            clusters[0].add(9)
            for one in clusters[0].actors[2:]:
                one.send = lambda request, shared=(): False

    with pytest.raises(ResourceError, match="in a row"):
        trained(tmp_path / "run", LOCAL, [lose])


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, pytest.param(REPLAY, marks=pytest.mark.slow)],
    ids=["rollouts", "a replay"],
)
def test_stopped_and_gone_on_with_elsewhere(clusters, tmp_path, settings):
    """A run that a cluster began ends on one machine, and the other way round."""
    expected = everything(trained(tmp_path / "whole", settings=settings))

    def stop(event):
        if isinstance(event, Updated) and event.progress.steps == 768:
            request_stop(tmp_path / name)

    for name, first, second in (("a", LOCAL, None), ("b", None, LOCAL)):
        with pytest.raises(Interrupted):
            trained(tmp_path / name, first, [stop], settings)
        run = Run.open(tmp_path / name)
        resume(run, cluster=second)
        run.close()
        assert everything(run) == expected
        chunks = {file.name for file in run.bulk.glob("*/*")}
        assert chunks == {file.name for file in (tmp_path / "whole/bulk").glob("*/*")}
    assert all(actor.released for cluster in clusters for actor in cluster.actors)


@pytest.mark.slow
def test_replays_are_handed_over_chunk_by_chunk(clusters, tmp_path, monkeypatch):
    """Actors are lost between checkpoints; whoever goes on has the replay of the last minute."""
    monkeypatch.setattr(cluster_workers, "HAND_OVER_SECONDS", 0.0)
    expected = everything(trained(tmp_path / "alone", settings=REPLAY))
    sent, lost = [], []

    def lose(event):
        if isinstance(event, Updated) and event.progress.iterations % 16 == 9:
            actor = next(one for one in clusters[0].actors[len(lost) :] if not one.released)
            actor.released = True
            lost.append(actor)
            clusters[0].add()

    take = ReceivedChunks.take

    def took(self, chunks):
        sent.extend(one is not None for own in chunks.values() for one in own.values())
        return take(self, chunks)

    monkeypatch.setattr(ReceivedChunks, "take", took)
    run = trained(tmp_path / "run", LOCAL, [lose], REPLAY)
    assert everything(run) == expected and len(lost) == 5
    assert sum(sent) < len(sent) / 3  # most were there already
    alone = {file.name for file in (tmp_path / "alone/bulk").glob("*/*")}
    assert {file.name for file in run.bulk.glob("*/*")} == alone


@pytest.mark.slow
def test_a_gymnasium_environment(clusters, tmp_path):
    settings = {
        "env": "gym:Acrobot-v1",
        "agent": {"n_steps": 16, "batch_size": 32},
        "training": {"num_envs": 2, "total_timesteps": 128, "members": 2, "backend": "serial"},
        "evaluation": {"episodes": 1, "max_steps": 50},
    }
    states = []
    for name, cluster in (("alone", None), ("far", LOCAL)):
        run = Run.create(resolve(settings), tmp_path / name, log=lambda sentence: None)
        train(run.config, run, cluster=cluster)
        run.close()
        states.append(everything(run))
    assert states[0] == states[1]


@pytest.mark.slow
def test_a_game_against_a_trained_policy(clusters, tmp_path):
    """The owner reads an opponent's files; nodes are sent its network."""
    game = {**SETTINGS, "env": {"name": "tictactoe", "self_play": {}}}
    first = trained(tmp_path / "first", settings=game)
    seats = {"opponents": {str(first.path): 1.0, "snapshots": 1.0}}
    game["env"] = {"name": "tictactoe", "self_play": seats}
    alone = everything(trained(tmp_path / "alone", settings=game))
    moved = tmp_path / "moved"

    def hide(event):
        if first.path.exists() and clusters:
            first.path.rename(moved)
            clusters[0].actors[0].released = True  # another one begins without the files
            clusters[0].add()

    assert everything(trained(tmp_path / "far", LOCAL, [hide], game)) == alone
    assert moved.exists()


@pytest.mark.slow
def test_phases_are_the_owners(clusters, tmp_path, monkeypatch):
    """Files named by the settings are not required on a node."""
    phases = [
        {"steps": 640, "env": {"half_length": 0.8}},
        {"anneal": {"half_length": {"start": 0.8, "final": 0.5, "over": 9}}},
    ]
    settings = {**SETTINGS, "curriculum": {"phases": phases}}
    alone = everything(trained(tmp_path / "alone", settings=settings))
    monkeypatch.setattr("slipstream.training.workers.curriculum_of", None)  # of nodes
    assert everything(trained(tmp_path / "far", LOCAL, settings=settings)) == alone
