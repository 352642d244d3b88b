"""Passes, and what finds, orders, runs and watches them: plugins, options, instruments."""
