"""Patterns of nodes that are computed as one operation: a module for each family."""
