"""Kernels: rules of environments as plain functions that are compiled and stepped in batches."""
