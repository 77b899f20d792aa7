"""Jobs: runs and studies that other processes work on, in the background or from a queue."""

VARIABLE = "SLIPSTREAM_JOB"
"""Of the environment of a job's process: ``FOLDER:ID``, its queue and its number there."""

BUSY = 75
"""What a queue is told, for exit code 2, of a job that another process kept from its folder."""

OVER = 76
"""What a queue is told, for exit code 130, of a job whose time budget ended."""
