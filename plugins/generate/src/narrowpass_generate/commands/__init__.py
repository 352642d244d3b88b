"""The commands ``narrowpass generate`` and ``narrowpass chat``."""
