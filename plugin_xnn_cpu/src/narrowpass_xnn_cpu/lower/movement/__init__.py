"""Data movement operators: reshape, transpose, concat, slice, gather, scatter, pad, tile."""
