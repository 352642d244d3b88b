"""Operators that move, pick, pad or repeat elements."""
