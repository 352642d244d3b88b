"""Decoders in each runtime, for ``generation.py``: a prompt, and a token after so many others."""
