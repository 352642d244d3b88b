"""Programs: methods compiled for the lowering of a backend, run, profiled, observed, explained."""
