"""Tables and curves: one row per member and iteration, exact after a kill and a resume."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from slipstream import api
from slipstream.core.errors import CheckpointError, ResourceError
from slipstream.core.storage import csv_table
from slipstream.core.storage.atomic_io import AppendOnlyFile
from slipstream.training.callbacks import tensorboard
from slipstream.training.callbacks.events import (
    Evaluated,
    Finished,
    Progress,
    Started,
    Updated,
)
from slipstream.training.callbacks.metrics import TableWriter
from slipstream.training.callbacks.tensorboard import TensorBoardWriter, get_hyperparams
from slipstream.training.settings.config import resolve


def progress(steps, budget=1_000):
    return Progress(budget, steps, iterations=steps // 100, updates=steps // 10)


def started(steps=0, members=2):
    return Started(progress(steps), members, 4, 1, "compiled", "cpu", resumed=steps > 0)


def updated(steps, members=2, **metrics):
    values = {"score": np.arange(members) + steps / 3, **metrics}
    return Updated(progress(steps), tuple(range(members)), values)


def evaluated(steps, scores=(0.5, np.nan)):
    return Evaluated(progress(steps), "validation", (0, 1), np.array(scores), best=(True, False))


def test_a_row_per_member_and_iteration(tmp_path):
    writer = TableWriter(tmp_path, print)
    for event in (started(), updated(100), updated(200), evaluated(200)):
        writer(event)
    writer.close()
    columns = csv_table.read_table(tmp_path / "metrics.csv")
    assert columns["member"] == [0, 1, 0, 1]
    assert columns["steps"] == [100, 100, 200, 200]
    assert columns["score"] == [100 / 3, 1 + 100 / 3, 200 / 3, 1 + 200 / 3]
    assert csv_table.read_table(tmp_path / "evaluations.csv") == {
        "member": [0, 1],
        "steps": [200, 200],
        "split": ["validation"] * 2,
        "score": [0.5, None],
        "best": [1, 0],
    }


def test_rows_are_on_disk_at_once(tmp_path):
    writer = TableWriter(tmp_path, print)
    writer(started())
    writer(updated(100))
    assert len(csv_table.read_table(tmp_path / "metrics.csv")["steps"]) == 2
    writer.close()


def test_a_resumed_run_drops_what_will_come_again(tmp_path):
    writer = TableWriter(tmp_path, print)
    for event in (started(), *(updated(100 * k) for k in range(1, 6)), evaluated(300)):
        writer(event)
    writer.close()
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("0,600,6,6")  # a kill in the middle of a line
    resumed = TableWriter(tmp_path, print)
    resumed(started(200))
    resumed(updated(300))
    resumed.close()
    assert csv_table.read_table(tmp_path / "metrics.csv")["steps"] == [100, 100, 200, 200, 300, 300]
    assert csv_table.read_table(tmp_path / "evaluations.csv")["steps"] == []


def test_a_new_column_widens_the_table(tmp_path):
    rows = csv_table.CsvTable(tmp_path / "t.csv", print)
    rows.append([{"a": 1}])
    rows.append([{"a": 2, "b": 0.5}])
    rows.append([{"a": 3}])
    rows.close()
    assert csv_table.read_table(tmp_path / "t.csv") == {"a": [1, 2, 3], "b": [None, 0.5, None]}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said(tmp_path):
    rows = csv_table.CsvTable(tmp_path / "t.csv", print)
    rows.append([{"a": 1}])
    rows.close()
    rows._file = AppendOnlyFile(Path("/dev/full"))
    with pytest.raises(ResourceError, match="disk is full"):
        rows.append([{"a": 2}])
    rows.close()
    assert csv_table.read_table(tmp_path / "t.csv") == {"a": [1]}


def events_in(folder):
    from tensorboardX.proto import event_pb2

    found = []
    for file in sorted(folder.glob("events*")):
        data = file.read_bytes()
        at = 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(event_pb2.Event.FromString(data[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return found


def test_curves_for_tensorboard(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    for event in (started(), updated(100), evaluated(100), Finished(progress(1_000), {})):
        writer(event)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["member-000", "member-001"]
    values = {
        value.tag: (event.step, value.simple_value)
        for event in events_in(tmp_path / "member-001")
        for value in event.summary.value
    }
    assert values["rollout/ep_rew_mean"] == (100, pytest.approx(1 + 100 / 3))
    assert "eval/mean_reward" not in values  # NaN is no point


def test_curves_have_the_names_that_sb3_gives_them(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    told = {"length": 20.0, "policy_loss": -0.1, "value_loss": 0.5, "entropy": 1.5, "updates": 10.0}
    now = Progress(1_000, 100, iterations=1, updates=10, wall=0.5)
    values = {name: np.array([value]) for name, value in told.items()}
    writer(Updated(now, (0,), {"score": np.array([3.0]), **values}))
    for split in ("validation", "test"):
        writer(Evaluated(now, split, (0,), np.array([0.25]), {"ep_len": np.array([7.0])}))
    writer.close()
    points = {
        value.tag: value.simple_value
        for event in events_in(tmp_path / "member-000")
        for value in event.summary.value
    }
    assert points == {
        "rollout/ep_rew_mean": 3.0,
        "rollout/ep_len_mean": 20.0,
        "train/policy_gradient_loss": pytest.approx(-0.1),
        "train/value_loss": 0.5,
        "train/entropy_loss": -1.5,
        "train/n_updates": 10.0,
        "time/total_timesteps": 100.0,
        "time/iterations": 1.0,
        "time/time_elapsed": 0.5,
        "time/fps": 200.0,
        "eval/mean_reward": 0.25,
        "eval/ep_len": 7.0,
        "test/mean_reward": 0.25,
        "test/ep_len": 7.0,
    }


def test_tensorboard_shows_each_members_settings(tmp_path):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    changes = {"agent.learning_rate": [1e-3, 1e-4], "training.members": 2, "training.seed": 5}
    config = resolve("cartpole", changes)
    writer = TensorBoardWriter(tmp_path, get_hyperparams(config))
    writer(updated(100))
    writer.close()
    for member, rate in enumerate((1e-3, 1e-4)):
        found = {}
        for event in events_in(tmp_path / f"member-{member:03d}"):
            for value in event.summary.value:
                if value.tag == "_hparams_/session_start_info":
                    content = value.metadata.plugin_data.content
                    found = HParamsPluginData.FromString(content).session_start_info.hparams
        assert found["learning_rate"].number_value == rate
        assert found["seed"].number_value == 5 + member
        assert found["env"].string_value == "cartpole"
        assert found["gamma"].number_value == config.agent.gamma


def test_episode_lengths_reach_the_table_and_the_curves(tmp_path):
    target = {"env": {"name": "cartpole"}, "agent": {"n_steps": 64, "batch_size": 256}}
    run = api.train(target, out=tmp_path / "run", report=False, num_envs=8, total_timesteps=1_024)
    length = run.metrics()["length"][-1]
    assert length == run.metrics()["score"][-1]  # a pole pays 1 for each step
    points = {
        value.tag: value.simple_value
        for event in events_in(run.path / "tensorboard" / "member-000")
        for value in event.summary.value
    }
    assert points["rollout/ep_len_mean"] == pytest.approx(length)
    assert points["rollout/ep_rew_mean"] == pytest.approx(length)
    assert points["time/fps"] > 0.0


def test_long_runs_are_thinned(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer(started(members=1))
    for steps in range(1, 100_001, 10):
        now = Progress(100_000, steps)
        writer(Updated(now, (0,), {"score": np.ones(1)}))
    writer.close()
    points = [event for event in events_in(tmp_path / "member-000") if event.summary.value]
    assert 400 < len(points) <= 501


def test_a_resumed_session_purges_later_points(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer(started(200))
    writer(updated(300))
    writer.close()
    (log,) = [e for e in events_in(tmp_path / "member-000") if e.HasField("session_log")]
    assert log.step == 201
    assert log.session_log.status == 1


def test_progress_counts_and_copies():
    now = Progress(budget=1_000)
    now.advance(600, 4)
    before = now.snapshot()
    now.advance(600, 4)
    assert (now.steps, now.updates, now.iterations) == (1_200, 8, 2)
    assert now.finished
    assert now.fraction == 1.0
    assert (before.steps, before.finished) == (600, False)


def bad_header(path):
    lines = path.read_bytes().split(b"\n", 1)
    path.write_bytes(lines[0].replace(b"steps", b"\xffeps") + b"\n" + lines[1])


def short_header(path):
    lines = path.read_bytes().split(b"\n", 1)
    path.write_bytes(b"member,steps\n" + lines[1])


def no_header(path):
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


def bad_line(path):
    lines = path.read_bytes().split(b"\n")
    lines[2] = b"\0" * 20
    path.write_bytes(b"\n".join(lines))


def a_folder(path):
    path.rename(path.with_name("kept"))
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "kept"),
    [(bad_header, 0), (short_header, 0), (no_header, 0), (bad_line, 3), (a_folder, 0)],
)
def test_a_damaged_table_is_moved_aside_and_nothing_is_erased(tmp_path, damage, kept):
    said = []
    writer = TableWriter(tmp_path, said.append)
    for event in (started(), updated(100), updated(200)):
        writer(event)
    writer.close()
    damage(tmp_path / "metrics.csv")
    before = (tmp_path / "metrics.csv").read_bytes() if damage is not a_folder else None
    resumed = TableWriter(tmp_path, said.append)
    resumed(started(200))
    resumed(updated(300))
    resumed.close()
    aside = tmp_path / "metrics.csv.damaged-1"
    assert len(said) == 1 and "metrics.csv is damaged" in said[0] and aside.name in said[0]
    assert aside.is_dir() if before is None else aside.read_bytes() == before
    assert len(csv_table.read_table(tmp_path / "metrics.csv")["steps"]) == kept + 2


@pytest.mark.parametrize(
    ("change", "words"),
    [(("score", "sc\x05re"), "no column `score`"), (("100", "1d0"), "'1d0', not a number")],
)
def test_a_damaged_table_is_not_read(tmp_path, change, words):
    writer = TableWriter(tmp_path, print)
    for event in (started(), updated(100), updated(200)):
        writer(event)
    writer.close()
    path = tmp_path / "metrics.csv"
    needed = ("member", "steps", "score")
    assert len(csv_table.read_table(path, numbers=needed)["steps"]) == 4
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(CheckpointError, match=words):
        csv_table.read_table(path, numbers=needed)


def test_a_sound_table_is_not_called_damaged(tmp_path):
    said = []
    for _ in range(2):
        writer = TableWriter(tmp_path, said.append)
        for event in (started(100), updated(200)):
            writer(event)
        writer.close()
    (tmp_path / "evaluations.csv").write_text("")  # a disk that was full
    writer = TableWriter(tmp_path, said.append)
    writer(started(200))
    writer(evaluated(300))
    writer.close()
    assert said == []


def test_a_path_that_the_locale_cannot_decode_is_written():
    _, start = tensorboard._session({"env.data.folder": "/prices/\udcc3\udca9"})
    assert "prices" in str(start)
