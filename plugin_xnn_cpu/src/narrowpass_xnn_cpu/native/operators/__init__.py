"""Factories by dtype over the kernel table, as lowering calls them."""
