"""Calls of the operating system that fail: a library that makes them, and what is run under it."""
