"""Damaged files and texts: each is read, or refused by an error of `narrowpass.errors`."""
