"""Operators of models whose caches are appended to in place."""

DOMAIN = "narrowpass.state"
APPEND_ROWS = "AppendRows"
"""The operator ``AppendRows(cache, new, length)`` with the attributes ``axis`` and ``stored``.

That is the type of the buffer's elements; in the graph, the cache is float32."""
CAUSAL_MASK = "CausalMask"
"""The operator ``CausalMask(length, fed?)`` with the attributes ``causal`` and ``window_size``.

Its result is the mask of scores [.., rows, keys], whose first row is at position ``length``;
``fed`` is another mask, [batch, 1, 1, keys]. No kernel computes it: it is attributes of the
attention that reads it.
"""
LENGTH = "narrowpass.length"
"""Name of the input, int64[1]: the rows that caches have before the run."""
MASK_PREFIX = "narrowpass.mask."
"""Begin of the names of inputs that a session derives from masks that it is fed."""
