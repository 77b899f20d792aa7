"""A plugin for pytest: `AsyncVectorEnv` is slipstream's face before Gymnasium's tests import it.

In a clone of Gymnasium::

    PYTHONPATH=.:SLIPSTREAM/tests/interfaces/adapters \\
        python -m pytest tests/vector -p gymnasium_plugin
"""

import gymnasium.vector
import gymnasium.vector.async_vector_env

from slipstream.adapters.gymnasium_vector import ForeignVectorAdapter

gymnasium.vector.AsyncVectorEnv = ForeignVectorAdapter
gymnasium.vector.async_vector_env.AsyncVectorEnv = ForeignVectorAdapter
