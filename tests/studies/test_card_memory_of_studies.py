"""A study whose card lacks memory for members at once halves them, and says so."""

import torch

import slipstream
from slipstream.agents import torch_agent
from slipstream.agents.ppo import torch_form
from slipstream.files.status import read_status

CONFIG = {
    "env": {"name": "cartpole"},
    "agent": {"horizon": 8, "minibatch": 16, "epochs": 1, "widths": [4]},
    "training": {"num_envs": 2, "total_steps": 64, "learner": "torch"},
    "study": {
        "n_trials": 2,
        "fold_seeds": 2,
        "trials_in_flight": 2,
        "pruning": {"rungs": []},
        "confirmation": {"top": 1, "seeds": 1, "bootstrap": 20},
        "final_seeds": 1,
        "space": {"agent.learning_rate": {"low": 1e-4, "high": 1e-3}},
    },
}


def test_halved_members_are_told_once(tmp_path, monkeypatch):
    """The processor calculates members together as a card does, and its memory holds one."""
    monkeypatch.setattr(torch_agent, "together", lambda members, _: [slice(0, members)])
    update, said = torch_form.PPOGroup.update, []

    def lacking(group, *arguments):
        if group.count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return update(group, *arguments)

    monkeypatch.setattr(torch_form.PPOGroup, "update", lacking)
    folder = slipstream.tune(
        CONFIG, study_name=str(tmp_path / "study"), workers=1, report=False, say=said.append
    )
    (told,) = [one for one in said if "lacks memory for all" in one]
    sentence = told.removeprefix("Note: ")
    assert "--group-size" in sentence
    assert folder.provenance["notes"].count(sentence) == 1
    assert sentence in (folder.path / "log.txt").read_text()
    assert sentence in read_status(folder.path).notes
