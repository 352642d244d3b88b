"""Running what was lowered: tapes, the thread pool, loops, meters and Ctrl-C."""
