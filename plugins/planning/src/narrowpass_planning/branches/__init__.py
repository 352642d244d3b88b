"""Ifs that are decided when a graph is compiled, or computed without one."""
