"""Jobs: runs and studies that other processes work on, in the background or from a queue."""
