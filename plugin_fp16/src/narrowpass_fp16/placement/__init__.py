"""Places casts by a minimum cut, and writes them into the model."""
