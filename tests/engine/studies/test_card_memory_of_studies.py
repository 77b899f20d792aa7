"""A study whose card lacks memory for members at once halves them, and says so."""

import torch

import slipstream
from slipstream.core.storage.status_file import read_status
from slipstream.rl.agents import torch_agent
from slipstream.rl.agents.ppo import torch_ppo


def test_halved_members_are_told_once(smallest_study, tmp_path, monkeypatch):
    """The processor calculates members together as a card does, and its memory holds one."""
    monkeypatch.setattr(torch_agent, "member_batches", lambda members, _: [slice(0, members)])
    update, said = torch_ppo.PPOGroup.update, []
    smallest_study["training"]["learner"] = "torch"
    smallest_study["study"]["max_concurrent_trials"] = 2

    def lacking(group, *arguments):
        if group.count > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return update(group, *arguments)

    monkeypatch.setattr(torch_ppo.PPOGroup, "update", lacking)
    folder = slipstream.tune(
        smallest_study, study_name=str(tmp_path / "study"), workers=1, report=False, log=said.append
    )
    (told,) = [one for one in said if "lacks memory for all" in one]
    sentence = told.removeprefix("Note: ")
    assert "--group-size" in sentence
    assert folder.provenance["notes"].count(sentence) == 1
    assert sentence in (folder.path / "log.txt").read_text()
    assert sentence in read_status(folder.path).notes
