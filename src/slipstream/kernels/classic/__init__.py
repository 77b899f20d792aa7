"""Classic control kernels, one file each; the file name is the environment name."""
