"""Planning for backends: weights cache, memory planner, shape propagation, partitioner.

A backend supplies kernels, and support checks for them. This package has the rest of a compiler
backend: the partitioner and schedule, the arena planner, shape propagation, the cache of packed
weights, and the host fallback for nodes without a native kernel.
"""
