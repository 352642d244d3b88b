"""What is known of shapes, and of integer values that are computed from shapes."""
