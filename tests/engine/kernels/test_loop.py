"""What the batch loop does around a kernel: resets, time limits, what is kept of an episode."""

import numpy as np
import pytest

from slipstream.core.errors import CheckpointError, KernelError
from slipstream.kernels.loop import HOLD, RESET, RESET_KEEP_ALL

TIME, START, RECORD, SUM = range(4)


def test_reset_begins_everywhere(make, steps, backend):
    run = steps(make(num_envs=4, backend=backend))
    obs = run.reset().obs
    assert (obs[:, TIME] == 0).all() and len(set(obs[:, START])) == 4


def test_an_ended_episode_begins_again_in_the_same_step(make, steps, backend):
    run = steps(make(num_envs=2, backend=backend))
    first = run.reset().obs
    outs = [run.step() for _ in range(4)]
    assert [o.obs[0, TIME] for o in outs] == [1, 2, 0, 1]
    assert [bool(o.terminated[0]) for o in outs] == [False, False, True, False]
    assert not any(o.truncated.any() for o in outs)
    assert all(o.valid.all() for o in outs)
    assert outs[2].obs[0, START] != first[0, START], "the next episode has its own stream"
    assert outs[2].reward[0] == np.float32(
        3.0 + float(run.env.drain_episodes().returns[0]) % 1 / 3
    ) or (outs[2].reward[0] > 3)


def test_time_limit_counts_the_step_that_reaches_it(make, steps, backend):
    """Gymnasium's rule: truncated at step max_episode_steps, terminated or not."""
    config = {"records": [[0, 0], [4, 0], [5, 0]], "max_steps": 4}
    run = steps(make(num_envs=3, config=config, backend=backend))
    run.reset()
    outs = [run.step() for _ in range(4)]
    assert not any((o.terminated | o.truncated).any() for o in outs[:3])
    assert outs[3].truncated.tolist() == [True, True, True]
    assert outs[3].terminated.tolist() == [False, True, False]
    assert (outs[3].obs[:, TIME] == 0).all()


def test_a_kernel_may_truncate_by_itself(make, steps, backend):
    run = steps(make(num_envs=2, config={"records": [[0, 2], [2, 2]]}, backend=backend))
    run.reset()
    run.step()
    out = run.step()
    assert out.truncated.all() and out.terminated.tolist() == [False, True]


def test_time_limit_can_be_lifted(make, steps, backend):
    config = {"records": [[0, 0]], "max_steps": 3}
    run = steps(make(num_envs=1, config=config, backend=backend, time_limit=False))
    run.reset()
    assert not any(run.step().truncated.any() for _ in range(10))


@pytest.mark.parametrize(
    ("mode", "kept"),
    [(RESET, [(1, 0), (1, 2)]), (RESET_KEEP_ALL, [(1, 0), (1, 1), (1, 2)]), (HOLD, [])],
)
def test_final_observations(make, steps, backend, mode, kept):
    """Copies: cut at 2, terminated at 2, cut at 2 by a record of its own, running."""
    config = {"records": [[0, 2], [2, 2], [0, 2], [9, 0]]}
    run = steps(make(num_envs=4, config=config, backend=backend, autoreset_mode=mode))
    first = run.reset().obs
    run.step(2)
    out = run.step(3)
    finals = run.env.drain_final_obs()
    assert [tuple(place) for place in finals.index] == kept
    for row, (_, e) in zip(finals.obs, kept, strict=True):
        assert row.tolist() == [2.0, first[e, START], float(e), np.float32(np.float32(0.1) * 5.0)]
    assert len(run.env.drain_final_obs().obs) == 0
    shown = [2, 2, 2, 2] if mode == HOLD else [0, 0, 0, 2]
    assert out.obs[:, TIME].tolist() == shown


def test_held_copies_wait(make, steps, backend):
    config = {"records": [[2, 0], [4, 0]]}
    run = steps(make(num_envs=2, config=config, backend=backend, autoreset_mode=HOLD))
    run.reset()
    outs = [run.step() for _ in range(5)]
    assert [bool(o.terminated[0]) for o in outs] == [False, True, False, False, False]
    assert [bool(o.terminated[1]) for o in outs] == [False, False, False, True, False]
    assert (outs[3].reward[0], outs[4].reward[1]) == (0.0, 0.0)
    done = run.env.drain_episodes()
    assert (done.t.tolist(), done.e.tolist()) == ([1, 3], [0, 1])


def test_episodes(make, steps, backend):
    config = {"records": [[2, 0], [3, 0]]}
    run = steps(make(num_envs=2, config=config, backend=backend))
    first = run.reset().obs.astype(np.float64)
    outs = [run.step(1) for _ in range(3)]
    done = run.env.drain_episodes()
    assert done.t.tolist() == [1, 2] and done.e.tolist() == [0, 1]
    assert done.length.tolist() == [2, 3] and done.length.dtype == np.int64
    assert done.returns == pytest.approx(
        [3 + 2 * first[0, START], 6 + 3 * first[1, START]], rel=1e-6
    )
    assert done.returns[1] == pytest.approx(sum(float(o.reward[1]) for o in outs), rel=1e-6)
    assert set(done.metrics) == {"sum", "late"}
    assert done.metrics["sum"] == pytest.approx([0.2, 0.3], rel=1e-6)
    assert done.metrics["late"].tolist() == [0.0, 1.0]
    assert len(run.env.drain_episodes().e) == 0


def test_more_episodes_than_were_foreseen(make, steps, backend):
    """Nothing is lost however long nobody drains."""
    run = steps(make(num_envs=3, config={"records": [[0, 1]]}, backend=backend))
    run.reset()
    for _ in range(40):
        run.step()
    done, finals = run.env.drain_episodes(), run.env.drain_final_obs()
    assert len(done.e) == len(finals.obs) == 120
    assert (done.t == np.repeat(np.arange(40), 3)).all()
    assert (finals.index[:, 0] == done.t).all()


def test_records_are_dealt_in_turn_within_a_member(make, steps, backend):
    config = {"records": [[3, 0], [4, 0], [5, 0]]}
    run = steps(make(num_envs=4, seeds=(1, 2), config=config, backend=backend))
    assert run.reset().obs[:, RECORD].tolist() == [0, 1, 2, 0, 0, 1, 2, 0]
    which = np.array([2, 2, 1, 1])
    env = make(num_envs=4, config=config, backend=backend, param_rows=which)
    assert steps(env).reset().obs[:, RECORD].tolist() == which.tolist()


def test_a_copy_depends_on_its_member_and_index_only(make, steps, backend):
    config = {"records": [[3, 0]]}
    many = steps(make(num_envs=6, seeds=(1, 9), config=config, backend=backend))
    few = steps(make(num_envs=2, seeds=(9,), config=config, backend=backend))
    assert (many.reset().obs[6:8] == few.reset().obs).all()
    for _ in range(8):
        assert (many.step(1).obs[6:8] == few.step(1).obs).all()


def test_stagger(make, steps, backend):
    config = {"records": [[0, 0]], "max_steps": 10, "stagger": True}
    run = steps(make(num_envs=200, config=config, backend=backend))
    run.reset()
    ends = np.array([run.step().truncated for _ in range(30)])
    first = ends.argmax(axis=0) + 1
    assert set(first) == set(range(1, 11)), "the first length is uniform in 1..max_steps"
    for e in range(200):
        assert np.diff(np.flatnonzero(ends[:, e])).tolist()[0] == 10, "later ones are whole"
    alone = steps(make(num_envs=3, config=config, backend=backend))
    alone.reset()
    assert (np.array([alone.step().truncated for _ in range(30)]) == ends[:, :3]).all()
    plain = steps(make(num_envs=5, config=config, backend=backend, stagger=False))
    plain.reset()
    assert [bool(plain.step().truncated.any()) for _ in range(10)] == [False] * 9 + [True]


def test_begin_names_the_episode_whoever_steps_it(make, steps, backend):
    config = {"records": [[0, 3], [0, 4]]}
    trails = []
    for copies in ([0, 1, 2], [2, 0, 1]):
        run = steps(
            make(num_envs=3, config=config, backend=backend, autoreset_mode=HOLD, split="test")
        )
        obs = run.fresh().obs
        run.env.begin(np.array(copies), np.array([4, 5, 6]), 123, obs)
        trail = [obs[copies]] + [run.step(1).obs[copies] for _ in range(4)]
        trails.append(np.stack(trail))
    assert (trails[0] == trails[1]).all()
    assert trails[0][0, :, RECORD].tolist() == [1, 0, 1], "record j % P of the split"
    other = steps(
        make(num_envs=1, config=config, backend=backend, autoreset_mode=HOLD, split="test")
    )
    obs = other.fresh().obs
    other.env.begin(np.array([0]), np.array([4]), 124, obs)
    assert obs[0, START] != trails[0][0, 0, START]


def test_begin_leaves_other_copies_alone(make, steps, backend):
    run = steps(make(num_envs=3, config={"records": [[9, 0]]}, backend=backend))
    run.reset()
    before = run.step().obs
    obs = before.copy()
    run.env.begin(np.array([1]), np.array([0]), 5, obs)
    assert (obs[[0, 2]] == before[[0, 2]]).all() and obs[1, TIME] == 0
    assert run.step().obs[:, TIME].tolist() == [2, 1, 2]


def test_state_goes_on_bit_for_bit(make, steps, backend):
    config = {"records": [[3, 0], [0, 5]], "max_steps": 9, "stagger": True}
    one = steps(make(num_envs=5, config=config, backend=backend))
    one.reset()
    for _ in range(7):
        now = one.step(2)
    state = one.env.get_state()
    assert all(len(values) == 5 for values in state.values())
    kept = {name: values.copy() for name, values in state.items()}
    later = [one.step(i % 5) for i in range(12)]
    assert all((state[name] == kept[name]).all() for name in state), "a state is a copy"

    other = steps(make(num_envs=5, config=config, backend=backend))
    out = other.fresh()
    other.env.set_state(state, out.obs)
    assert (out.obs == now.obs).all()
    for i, expected in enumerate(later):
        got = other.step(i % 5)
        for mine, theirs in zip(got[:4], expected[:4], strict=True):
            assert (mine == theirs).all()


def test_a_state_of_before_a_field_is_refused(make):
    env = make(backend="serial")
    state, (field, *_) = env.get_state(), env.kernel.STATE.names
    del state[f"state.{field}"]
    obs = np.zeros((3, *env.spec.observation_shape), env.spec.observation_dtype)
    with pytest.raises(CheckpointError, match=rf"lacks `state\.{field}`.*Train into another"):
        env.set_state(state, obs)


def test_backends_restore_each_other(make, steps):
    config = {"records": [[3, 0], [0, 5]]}
    runs = [steps(make(num_envs=4, config=config, backend=b)) for b in ("serial", "compiled")]
    for run in runs:
        run.reset()
        run.step(1)
    obs = runs[1].fresh().obs
    runs[1].env.set_state(runs[0].env.get_state(), obs)
    for _ in range(6):
        assert (runs[0].step(3).obs == runs[1].step(3).obs).all()


def test_arrays_handed_out_are_never_overwritten(make, steps, backend):
    config = {"records": [[0, 2], [3, 0]]}
    run = steps(make(num_envs=2, config=config, backend=backend))
    held = []
    out = run.reset()
    for _ in range(20):
        held.append((out, [np.array(x) for x in out[:4]]))
        out = run.step(1)
        for drained in (run.env.drain_final_obs(), run.env.drain_episodes()):
            arrays = [a for a in drained if isinstance(a, np.ndarray)]
            held.append((arrays, [a.copy() for a in arrays]))
        state = list(run.env.get_state().values()) + list(run.env.read(("time", "seen")).values())
        held.append((state, [a.copy() for a in state]))
    for arrays, copies in held:
        for array, copy in zip(arrays[:4] if len(arrays) == 6 else arrays, copies, strict=True):
            assert np.array_equal(array, copy)


def test_nothing_outside_the_rows_is_written(make, steps, backend):
    """Rows of a rollout: the neighbours' memory stays."""
    run = steps(make(num_envs=2, config={"records": [[0, 2]]}, backend=backend))
    block = np.full((3, 6, 4), -99, np.float32)
    rewards, flags = np.full((3, 6), -99, np.float32), np.zeros((3, 3, 6), np.bool_)
    out = run.fresh()._replace(
        obs=block[1, 2:4],
        reward=rewards[1, 2:4],
        terminated=flags[0, 1, 2:4],
        truncated=flags[1, 1, 2:4],
        valid=flags[2, 1, 2:4],
    )
    run.reset()
    run.env.step(np.zeros((2, 1), np.int64), out, 0)
    assert (block[1, 2:4, TIME] == 1).all()
    block[1, 2:4] = -99
    rewards[1, 2:4] = -99
    assert (block == -99).all() and (rewards == -99).all()


def test_read(make, steps, backend):
    run = steps(make(num_envs=2, config={"records": [[9, 0]]}, backend=backend))
    run.reset()
    run.step(3)
    read = run.env.read(("time", "seen"))
    assert read["time"].tolist() == [1, 1] and read["seen"].shape == (2, 2, 2)
    assert read["seen"][0, 1, 0] == 3.0 * float(np.float32(0.1))


def test_infinite_reward_is_named(make, steps, backend):
    config = {"records": [[9, 0]], "nan_at": 3}
    env = make(
        num_envs=3, seeds=(11,), config=config, backend=backend, param_rows=np.array([0, 0, 0])
    )
    run = steps(env)
    run.reset()
    run.step(1)
    run.step(2)
    with pytest.raises(KernelError) as error:
        run.step(4)
    message = str(error.value)
    for part in ("`clock`", "NaN or infinite", "environment", "seed 11", "step 2", "[4]", "'time'"):
        assert part in message, message
    assert "\n" not in message
    run.reset()
    run.step(1)  # the fault is forgotten with the episode
