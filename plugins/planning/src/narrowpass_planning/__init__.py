"""Planning for backends: weights cache, memory planner, shape propagation, partitioner.

A backend supplies kernels. What it needs around them is here: which nodes it runs and in what
order, where values lie in memory, how shapes follow from those of the feeds, where packed weights
are kept and shared, and what runs the nodes that it has no kernel for.
"""
