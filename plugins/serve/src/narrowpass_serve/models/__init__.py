"""Models: where they are, which are loaded, and how their requests run in batches."""
