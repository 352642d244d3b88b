"""Memory of packed weights and of inner values: who allocates it, and where values lie in it."""
