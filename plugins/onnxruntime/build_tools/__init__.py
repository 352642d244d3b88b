"""What builds the C extension."""
