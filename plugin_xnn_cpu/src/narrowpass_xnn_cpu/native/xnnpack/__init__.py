"""XNNPACK's operators, checked where XNNPACK asserts or accepts silently."""
