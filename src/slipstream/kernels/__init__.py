"""Environment kernels: rules as plain functions, compiled and stepped in batches."""
