import numpy as np
import pytest

from slipstream.jit.alignment import LINE, aligned_zeros


@pytest.mark.parametrize("shape", [(1,), (3, 0), (7, 5), (300, 2, 64)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_arrays_begin_on_a_line(shape, dtype):
    kept = [aligned_zeros(shape, dtype) for _ in range(5)]
    for array in kept:
        assert array.shape == shape and array.dtype == dtype and not array.any()
        assert array.ctypes.data % LINE == 0 or not array.size
        assert array.flags.c_contiguous and array.flags.writeable
        array[...] = 1
