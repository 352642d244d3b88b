"""Patterns of nodes that are fused into one operation: a module for each family."""
