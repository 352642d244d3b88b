"""Compiled methods on disk: what planning decided, so that another process need not plan."""
