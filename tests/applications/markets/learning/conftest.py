"""Fixtures that train on planted markets."""

from short_training import learner as learner
from short_training import train as train
