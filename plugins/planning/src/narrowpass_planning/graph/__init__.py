"""Analysis of a graph: its operations, constants, types and shapes."""

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op

__all__ = [
    "Facts",
    "Op",
]
