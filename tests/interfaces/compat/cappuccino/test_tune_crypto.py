"""Cappuccino's command: refused in words where it cannot run; examples/older_systems runs it."""

import re

import pytest
import torch

from slipstream.cli.main import main
from slipstream.markets.synthetic import SyntheticCrypto

LINE = (
    "tune crypto --n-trials 500 --study-name cappuccino_5m_vectorized --timeframe 5m "
    "--data-dir data/5m --n-envs 12"
)


def code(words):
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


@pytest.fixture
def prices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SyntheticCrypto().write("data/5m", 2_000)


def refused(words, capsys):
    """Errors of the command: exit code 2, one paragraph, no files."""
    assert code(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    return said[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a card")
def test_a_card_that_is_not_there_is_refused_in_words(prices, capsys, tmp_path):
    said = refused([*LINE.split(), "--gpu", "0"], capsys)
    assert re.search(r"cuda:0 is not available.*leave out --gpu 0", said)
    assert "--device" not in said
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize("space", ["default", "cappuccino"])
def test_a_symbol_without_prices_is_named(prices, capsys, space, tmp_path):
    words = [*LINE.split(), "--space", space, "--set", "env.data.symbols=[BTC,XRP]"]
    assert re.search(r"XRP", refused(words, capsys))
    assert not (tmp_path / "studies" / "cappuccino_5m_vectorized").exists()


def test_what_the_help_says_of_copies_and_spaces(capsys):
    assert code(["tune", "--help"]) == 0
    said = " ".join(re.sub(r"[│\s]+", " ", capsys.readouterr().out).split())
    assert "12 on markets, else 16" in said and "cappuccino, finrl_crypto" in said
    assert refused([*LINE.split(), "--space", "cappucino"], capsys).count("cappuccino") == 1


@pytest.mark.parametrize("words", [["tune", "crypto"], ["tune", "crypto", "--timeframe", "5m"]])
def test_without_a_folder_it_says_which_option_names_it(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(words, capsys)
    assert "tune ... --data-dir DIR" in said and "env.data.folder" in said
