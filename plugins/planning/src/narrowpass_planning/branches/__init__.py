"""Rewrites of If: inlining of the taken branch, and if-conversion to Where."""
