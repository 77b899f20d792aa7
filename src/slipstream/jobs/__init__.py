"""Jobs: runs and studies that other processes work on, in the background or from a queue."""

VARIABLE = "SLIPSTREAM_JOB"
"""Of the environment of a job's process: ``FOLDER:ID``, its queue and its number there."""
