"""State that outlives a run: KV caches, hidden states, and the sessions that keep them."""
