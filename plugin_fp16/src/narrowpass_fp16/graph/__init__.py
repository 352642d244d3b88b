"""Schemas, opset versions, and the boundaries of subgraphs and functions."""
