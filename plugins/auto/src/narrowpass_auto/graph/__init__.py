"""Nodes whose types are chosen, and models of these nodes alone."""
