"""Which operation runs where, and in what order."""
