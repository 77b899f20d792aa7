"""Commands and their Python twins have the same names and the same defaults."""

from __future__ import annotations

import importlib.util
import inspect

import pytest
import typer.main

from slipstream import api
from slipstream.cli import commands
from slipstream.cli.main import app
from slipstream.core.field_names import _ARGUMENTS as ARGUMENTS
from slipstream.studies.config import StudyConfig
from slipstream.training.settings.config import TrainingConfig

TWINS = {
    "train": (api.train,),
    "resume": (api.resume, api.resume_study),
    "evaluate": (api.write_report, api.evaluate_games),
    "tune": (api.tune,),
    "study report": (api.report_study,),
    "check": (api.check,),
    "best-response": (api.best_response,),
    "export": (api.export,),
    "model-card": (api.write_model_card,),
}
# Fields of sections are arguments of `train`; of `tune` they are in `study` and `overrides`.
FIELDS = {*TrainingConfig.model_fields, *StudyConfig.model_fields, "data_dir", "timeframe"}
# Options that Python has under other names.
NAMES = {
    **{"set_": "overrides", "no_report": "report", "gpu": "device", "opponent": "opponents"},
    "stochastic": "deterministic",
    **dict.fromkeys(("max_workers", "gpu_share", "insecure_cluster"), "cluster"),
}
ALONE = {
    "video",
    "video_episodes",
    "background",
    "log",
    "replace",
    "cores",
}  # films and processes: commands' alone


@pytest.mark.parametrize("name", TWINS)
def test_every_option_is_an_argument_of_the_twin(name):
    command = typer.main.get_command(app)
    for part in name.split():
        command = command.commands[part]
    known = {}
    for twin in TWINS[name]:
        known |= inspect.signature(twin).parameters
    for option in command.params:
        given = option.name
        if option.param_type_name == "argument" or given in ALONE:
            continue
        if name == "check" and given == "set_":
            given = "env"  # fields of the environment, by themselves
        theirs = given if given in known else NAMES.get(given, given)
        assert theirs in known or theirs in FIELDS, given
        if given in known and option.default not in (None, ()):
            assert option.default == known[given].default, given


def test_messages_name_arguments_that_python_has():
    twins = [twin for pair in TWINS.values() for twin in pair]
    known = FIELDS.union(*(inspect.signature(twin).parameters for twin in twins))
    known |= {"max_workers", "gpu_share"}  # of ClusterOptions
    assert set(ARGUMENTS.values()) <= known


def test_a_command_is_one_file(monkeypatch, tmp_path):
    """A file beside the others is found, and nothing else has to name it."""
    (tmp_path / "hello.py").write_text(
        "import typer\napp = typer.Typer()\nFILE_COMMANDS = ('hello',)\n"
        "@app.command()\ndef hello(name: str):\n    print('hello', name)\n"
    )
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    spec = importlib.util.find_spec("slipstream.cli.main")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "hello" in typer.main.get_command(module.app).commands
    assert module._writes_files(["hello", "you"]) and not module._writes_files(["list"])
