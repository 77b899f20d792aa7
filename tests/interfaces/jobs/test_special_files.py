"""Named pipes and endless files where slipstream reads its own: refused at once, and in words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slipstream.cli.main import main
from slipstream.core.errors import CheckpointError, ConfigError, DataError, ResourceError
from slipstream.core.storage.atomic_io import AppendOnlyFile
from slipstream.core.storage.status_file import current_version, read_events
from slipstream.jit import cache
from slipstream.jobs.job_process import last_log_line
from slipstream.kernels.kernel_registry import import_file
from slipstream.markets.data.config import DataConfig
from slipstream.markets.data.market import load_market
from slipstream.markets.live.bar_store import BarSchema, BarStore
from slipstream.markets.live.deployment import Deployment
from slipstream.training.population.member_state import LiveStates, PolicyStore

HUGE = 5 << 30


def _sparse(path: Path) -> Path:
    path.touch()
    os.truncate(path, HUGE)
    return path


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _code(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("env: cartpole\n")
    return tmp_path / "run"


def test_a_log_that_is_a_pipe_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _pipe(run / "log.txt")
    assert _code("log", str(run)) == 2
    assert "it is a named pipe, not a file" in capsys.readouterr().err


def test_of_an_endless_log_its_end_is_printed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _sparse(run / "log.txt").open("ab") as file:
        file.write(b"the end\n")
    assert _code("log", str(run)) == 0
    assert capsys.readouterr().out == "the end\n"


def test_of_endless_events_the_last_ones_are_read(tmp_path: Path) -> None:
    with _sparse(tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'\n{"at": 1.0, "event": "begun"}\n')
    assert [one["event"] for one in read_events(tmp_path, 1)] == ["begun"]
    (tmp_path / "events.jsonl").unlink()
    _pipe(tmp_path / "events.jsonl")
    assert read_events(tmp_path, 1) == []


def test_a_state_or_policy_of_a_member_that_is_a_pipe(tmp_path: Path) -> None:
    live, kept = LiveStates(tmp_path / "live"), PolicyStore(tmp_path / "weights")
    _pipe(tmp_path / "live" / "search-00001-2.state")
    assert live.content("search-00001-2") is None and live.policy("search-00001-2") is None
    _pipe(tmp_path / "weights" / "search-00001.safetensors")
    with pytest.raises(CheckpointError, match="it is a named pipe, not a file"):
        kept.get("search-00001-2")


def test_a_pipe_among_compiled_code_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(b"code")
    cache.write_checksum(tmp_path)
    assert cache.is_intact(tmp_path)
    (tmp_path / "code").unlink()
    _pipe(tmp_path / "code")
    assert not cache.is_intact(tmp_path)


def test_a_pipe_that_somebody_reads_is_not_appended_to(tmp_path: Path) -> None:
    path = _pipe(tmp_path / "log.txt")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ResourceError, match="named pipe"):
        AppendOnlyFile(path)
    os.close(reader)


@pytest.mark.parametrize("make", [_pipe, _sparse, lambda path: path.write_bytes(b"\xff\xfe")])
def test_a_version_that_is_no_number_is_refused(tmp_path: Path, make) -> None:
    (tmp_path / "live").mkdir()
    make(tmp_path / "live" / "current")
    with pytest.raises(CheckpointError, match="must hold the number of a version"):
        current_version(tmp_path / "live")
    assert _code("status", str(tmp_path / "live")) == 2


@pytest.mark.parametrize("make", [_pipe, _sparse])
def test_an_audit_that_cannot_be_read_is_refused(tmp_path: Path, make) -> None:
    make(tmp_path / "audit.jsonl")
    with pytest.raises(CheckpointError, match=r"audit\.jsonl cannot be read"):
        Deployment(tmp_path).audit()


@pytest.mark.parametrize("make", [_pipe, _sparse])
def test_bars_of_an_account_that_cannot_be_read_are_refused(tmp_path: Path, make) -> None:
    make(tmp_path / "EURUSD.csv")
    with pytest.raises(DataError, match="was modified"):
        BarStore(tmp_path, BarSchema(("EURUSD",), (), 60, "fx", (), "fx"))


def test_prices_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.markets.data.raw_table.free_memory", lambda: 8 << 30)
    path = tmp_path / "EURUSD.csv"
    path.write_text("time,open,high,low,close\n2025-01-06 00:00:00,1.1,1.1,1.1,1.1\n" * 2000)
    os.truncate(path, HUGE)
    with pytest.raises(ResourceError, match=r"5\.0 GiB of text"):
        load_market(DataConfig.model_validate({"folder": str(tmp_path)}))


@pytest.mark.parametrize("make", [_pipe, _sparse])
def test_a_kernel_file_that_cannot_be_read_is_refused(tmp_path: Path, make) -> None:
    with pytest.raises(ConfigError, match=r"kernel file .*(cannot be read|There is no)|no kernel"):
        import_file(make(tmp_path / "own.py"), "kernel")


def test_the_last_words_of_a_pipe_are_none(tmp_path: Path) -> None:
    assert last_log_line(_pipe(tmp_path / "1.txt")) == ""


def test_names_that_no_file_can_have_are_cut() -> None:
    text = str(ConfigError(f"There is no {'x' * 1000}: give /home/{'y' * 200}/a."))
    assert len(text) < 450 and "y" * 200 in text and text.endswith("/a.")
