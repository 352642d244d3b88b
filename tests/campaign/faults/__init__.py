"""Calls of the operating system that fail: a library for it, and what is run under it."""
