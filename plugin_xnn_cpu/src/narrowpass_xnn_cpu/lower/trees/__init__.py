"""Ensembles of decision trees: from attributes to the arrays that the kernel walks."""
