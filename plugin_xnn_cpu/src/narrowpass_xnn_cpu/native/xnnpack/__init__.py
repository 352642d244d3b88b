"""XNNPACK's operators; arguments that XNNPACK only asserts, or ignores, are checked here."""
