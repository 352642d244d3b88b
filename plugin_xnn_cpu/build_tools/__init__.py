"""What builds the extension; not part of the package."""
