"""Nodes joined to the operations that one kernel computes."""
