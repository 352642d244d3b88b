"""What is known of a graph: constants, types, shapes, and the operations that are planned."""
