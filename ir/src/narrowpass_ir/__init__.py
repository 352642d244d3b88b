"""Models: read, written, verified, inferred, and what is asked of their nodes and values."""
