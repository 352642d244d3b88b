"""Weights on their way into operators: packed once, shared, and kept on disk."""
