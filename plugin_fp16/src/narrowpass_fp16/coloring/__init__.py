"""The colour of each node: its precision, and the rule that decided."""
