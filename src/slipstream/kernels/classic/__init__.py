"""One file, one environment: the file's name is the kernel's name."""
