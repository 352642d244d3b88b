"""Backends and programs: the contract of both, and what they share at run time."""
