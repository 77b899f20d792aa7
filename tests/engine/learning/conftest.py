"""Fixtures that train on known answers."""

from short_training import learner as learner
from short_training import train as train
