"""Folds constant expressions: the rules, the size, the sweep over a model."""
