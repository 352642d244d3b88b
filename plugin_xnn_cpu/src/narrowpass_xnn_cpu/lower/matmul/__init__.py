"""Matmuls with constant and computed operands, their epilogues, and recurrent operators."""
