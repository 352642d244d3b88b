"""Ranges of values, measured on samples."""
