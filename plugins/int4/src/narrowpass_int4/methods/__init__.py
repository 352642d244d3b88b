"""How integers, scales and zero points are chosen."""
