"""What an error says, and to whom."""

import pytest

from slipstream.core.errors import ConfigError, DataError
from slipstream.core.text import SummaryRepr


@pytest.fixture
def error(monkeypatch):
    monkeypatch.setattr(ConfigError, "on_command_line", False)
    return ConfigError("Name it with --study-name or --from, or run `slipstream tune --hours 2`.")


def test_options_are_arguments_to_a_caller_from_python(error):
    assert str(error) == "Name it with study_name= or start=, or run `slipstream tune --hours 2`."


def test_options_are_options_to_a_command(error, monkeypatch):
    monkeypatch.setattr(ConfigError, "on_command_line", True)
    assert str(error).startswith("Name it with --study-name or --from, or")


def test_a_notebook_shows_the_paragraph_alone(error):
    assert error._render_traceback_() == [f"ConfigError: {error}"]


def test_a_summary_is_a_line_and_a_table_that_no_name_breaks_out_of():
    class Thing(SummaryRepr):
        def summary(self):
            return {"name": "<b>", "size": 3, "nothing": None}

    assert repr(Thing()) == "<Thing: name <b>, size 3>"
    assert "&lt;b&gt;" in Thing()._repr_html_() and "nothing" not in Thing()._repr_html_()


def test_options_of_a_quoted_command_stay_behind_other_quotes():
    """A quoted word before the command made its options Python's arguments: `symbols==EURUSD`."""
    command = "`slipstream data check prices --symbols=EURUSD`"
    assert command in str(DataError(f"Say which in `time_format`: {command} lists everything."))
    assert str(DataError("Leave out `--out` or --seed 3.")) == "Leave out `out=` or seed=3."
