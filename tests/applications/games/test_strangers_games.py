"""An opponent from somebody else's run plays without their code."""

from __future__ import annotations

import pytest
from strangers import FAST, SMALL, become, kernel
from strangers import place as place

import slipstream
from slipstream.cli import main
from slipstream.training.runs.matches import load_opponent


def test_an_opponent_of_a_stranger_plays_without_their_code(place, monkeypatch):
    become(monkeypatch, place, "they")
    file = kernel(place / "theirs" / "game.py", "pennies")
    seat = {**FAST, "env.self_play": {"opponents": {"random": 1}}}
    run = slipstream.train(str(file), out=place / "run", overrides=seat, **SMALL)
    become(monkeypatch, place, "me")
    file.unlink()
    assert (
        load_opponent(str(kernel(place / "mine.py", "pennies")), str(run.path)).policy is not None
    )


def test_a_strangers_run_is_not_ranked_without_trust(place, monkeypatch, capsys):
    become(monkeypatch, place, "they")
    file = kernel(place / "theirs" / "game.py", "pennies")
    run = slipstream.train(str(file), out=place / "run", overrides=FAST, **SMALL)
    become(monkeypatch, place, "me")
    file.with_name("game.ran").unlink()
    with pytest.raises(SystemExit) as left:
        main(["rank", str(run.path), "random"])
    assert left.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert not file.with_name("game.ran").exists()
    assert f"runs code named by its config: {file}" in told and "--trust" in told
