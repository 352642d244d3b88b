"""Fusion of nodes into operations that one kernel computes."""
