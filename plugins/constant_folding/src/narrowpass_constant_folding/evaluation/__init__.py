"""Evaluates single nodes at build time, within bounds of memory and time."""
