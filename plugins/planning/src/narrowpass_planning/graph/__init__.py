"""What is known of a graph: constants, types, shapes, and the operations that are planned."""

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op

__all__ = [
    "Facts",
    "Op",
]
