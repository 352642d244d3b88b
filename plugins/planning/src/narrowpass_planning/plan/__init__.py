"""Compiled partitions: steps over slots, sized for the feeds' shapes, bound to memory, and run."""
