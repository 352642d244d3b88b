"""The passes of the distribution, one per module."""
