"""State that a session keeps in memory of the backend: caches that are appended to in place."""
