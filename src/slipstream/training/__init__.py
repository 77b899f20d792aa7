"""The loop, and one run: config, directory, checkpoints, evaluation."""
