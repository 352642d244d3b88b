"""Host fallback: numpy kernels and control flow for nodes that the backend does not support."""
