"""What every other folder stands on: errors, config, random streams, and the kernel contract."""
