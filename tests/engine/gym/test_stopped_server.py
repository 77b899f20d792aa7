"""Whatever stands still, training ends or goes on in words: the process that starts workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import suppress

import psutil
import pytest

import slipstream
from slipstream.core.errors import SlipstreamError
from slipstream.training.callbacks.events import Updated

SECONDS = 15.0  # from the stop to the end of a training of some seconds


def _train(out, pipe):
    """Trains in worker processes; once they are there, stops who starts them and kills one."""
    told = []

    def stop(event):
        if not isinstance(event, Updated) or event.progress.iterations != 2:
            return
        children = psutil.Process().children()
        (server,) = [one for one in children if "process.server" in " ".join(one.cmdline())]
        workers = [one.pid for one in server.children()]
        pipe.send([server.pid, *workers])
        server.suspend()
        os.kill(workers[0], signal.SIGKILL)

    try:
        slipstream.train(
            "gym:CartPole-v1",
            out=out,
            num_envs=4,
            total_timesteps=4_096,
            overrides={
                "training.backend": "process",
                "agent.n_steps": 32,
                "evaluation.episodes": 2,
            },
            callbacks=[stop],
            report=False,
            log=told.append,
        )
        pipe.send("it ended")
    except SlipstreamError as error:
        pipe.send(str(error))
    os._exit(0)


@pytest.mark.slow
def test_a_fork_server_that_stands_still_does_not_hang_training(tmp_path):
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    trainer = fork.Process(target=_train, args=(tmp_path / "run", there))
    trainer.start()
    family = []
    try:
        assert here.poll(120.0)
        family = here.recv()
        assert len(family) > 1, "there is a server with workers"
        assert here.poll(SECONDS), "neither an end nor a word in time"
        assert here.recv()
    finally:
        for pid in [trainer.pid, *family]:  # a server that stands still outlives its parent
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        trainer.join(10)
