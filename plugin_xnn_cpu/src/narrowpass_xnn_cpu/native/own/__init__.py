"""Kernels of ours: how each packs the constants of a problem, and plans a run of given sizes."""
