"""Folds arithmetic with constants into the weights of the operator before it."""
