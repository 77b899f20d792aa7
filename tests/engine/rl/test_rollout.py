import gymnasium
import numpy as np

from slipstream.kernels.spec import EnvSpec
from slipstream.kernels.vector_env import FinalObs
from slipstream.rl.experience.rollout import Rollout, rollout_bytes


def test_environments_write_into_the_rollout():
    space = gymnasium.spaces.Box(-1, 1, (5,), np.float32)
    rollout = Rollout(EnvSpec(space, gymnasium.spaces.Discrete(2)), 3, 2, 4)
    out = rollout.step_buffers(1, 2, 6)
    out.obs[:] = 7
    out.reward[:] = 8
    out.truncated[:] = True
    assert (rollout.obs[2, 2:6] == 7).all() and rollout.obs.sum() == 7 * 4 * 5
    assert rollout.reward[1].tolist() == [0, 0, 8, 8, 8, 8, 0, 0]
    assert rollout.truncated.sum() == 4
    assert out.obs.flags.c_contiguous


def test_bytes_are_known_beforehand():
    image = gymnasium.spaces.Box(0, 255, (4, 5, 6), np.uint8)
    sizes = (EnvSpec(image, gymnasium.spaces.Box(-1, 1, (2,), np.float32)), 7, 2, 3, 5)
    rollout = Rollout(*sizes)
    arrays = [rollout.obs, rollout.actions, rollout.log_prob, rollout.reward, rollout.mask]
    arrays += [rollout.terminated, rollout.truncated, rollout.valid]
    assert rollout_bytes(*sizes) == sum(array.nbytes for array in arrays)


def test_the_last_observation_begins_the_next_block():
    space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    rollout = Rollout(EnvSpec(space, gymnasium.spaces.Discrete(2)), 3, 1, 2)
    rollout.obs[3] = 5
    a = FinalObs(np.ones((1, 2), np.float32), np.array([[0, 1]]))
    b = FinalObs(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64))
    rollout.set_final_obs(a, b)
    assert rollout.final_index.tolist() == [[0, 1]]
    rollout.start_next()
    assert (rollout.obs[0] == 5).all() and len(rollout.final_index) == 0 and rollout.steps == 6
    assert rollout.final_obs.shape == (0, 2)
