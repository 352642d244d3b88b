"""Compiled partitions: steps over slots, what they need for given sizes, and their memory."""
