"""Warning for a run that spends its time on updates."""

import slipstream


def test_one_update_a_vector_step_does_less_work_and_says_so(tmp_path):
    found = {}
    for pace in ("vector_step", 0.25, 0.125):
        agent = {"name": "dqn", "utd_ratio": pace, "learning_starts": 64, "batch_size": 8}
        run = slipstream.train(
            {"env": "cartpole", "agent": {**agent, "net_arch": [8]}},
            out=tmp_path / str(pace),
            num_envs=4,
            total_timesteps=1_024,
            report=False,
            log=lambda _: None,
        )
        found[pace] = run
    updates = {pace: run.result["progress"]["updates"] for pace, run in found.items()}
    assert updates["vector_step"] == updates[0.25] == 2 * updates[0.125]
    notes = " ".join(found["vector_step"].provenance["notes"])
    assert "4 environment steps share one update" in notes
    assert "vector_step" not in " ".join(found[0.25].provenance["notes"])
