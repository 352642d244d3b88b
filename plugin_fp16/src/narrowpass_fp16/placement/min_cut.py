"""The minimum cut of a network: which of its nodes stay on the side of the source.

The algorithm is that of E. A. Dinic, "Algorithm for solution of a problem of maximum flow in a
network with power estimation", Soviet Mathematics Doklady 11 (1970), run on each connected part of
the network by itself.
"""

from __future__ import annotations

from collections import deque

SOURCE = 0
SINK = 1
INFINITE = 1 << 120
"""A capacity that is never cut."""


class Network:
    """A directed network with integer capacities.

    Args:
        nodes: how many there are, `SOURCE` and `SINK` among them.
    """

    def __init__(self, nodes: int = 2) -> None:
        self._edges: list[list[int]] = [[] for _ in range(nodes)]
        self._to: list[int] = []
        self._residual: list[int] = []

    def add_node(self) -> int:
        """Add a node; return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def add_edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge, paid where `start` is on the side of the source and `end` is not."""
        for tail, head, residual in ((start, end, capacity), (end, start, 0)):
            self._edges[tail].append(len(self._to))
            self._to.append(head)
            self._residual.append(residual)

    def cut(self) -> list[bool]:
        """Return a minimum cut; of several, that with most nodes on the source's side.

        Returns:
            For each node, whether it is on the source's side.

        Raises:
            ValueError: only edges of infinite capacity separate the two.
        """
        for part in self._parts():
            self._saturate(part)
        # What can still reach the sink is on its side, and nothing else needs to be.
        reaches = [False] * len(self._edges)
        reaches[SINK] = True
        waiting = deque([SINK])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                before = self._to[edge]
                if not reaches[before] and self._residual[edge ^ 1]:
                    reaches[before] = True
                    waiting.append(before)
        return [not found for found in reaches]

    def _parts(self) -> list[list[int]]:
        """Return the connected components without source and sink."""
        seen = [False] * len(self._edges)
        seen[SOURCE] = seen[SINK] = True
        parts = []
        for first in range(len(self._edges)):
            if seen[first]:
                continue
            seen[first] = True
            part = [first]
            for node in part:
                for edge in self._edges[node]:
                    other = self._to[edge]
                    if not seen[other]:
                        seen[other] = True
                        part.append(other)
            parts.append(part)
        return parts

    def _saturate(self, part: list[int]) -> None:
        """Push the maximum flow through a connected component (Dinic)."""
        members = set(part)
        entries = [
            edge ^ 1 for node in part for edge in self._edges[node] if self._to[edge] == SOURCE
        ]
        entries = [edge for edge in entries if self._residual[edge]]
        exits = any(
            self._to[edge] == SINK and self._residual[edge] for n in part for edge in self._edges[n]
        )
        if not entries or not exits:
            return
        while True:
            level = self._levels(entries, members)
            if SINK not in level:
                return
            position = dict.fromkeys(level, 0)
            for entry in entries:
                while self._residual[entry] and self._push(entry, level, position):
                    pass

    def _levels(self, entries: list[int], members: set[int]) -> dict[int, int]:
        level: dict[int, int] = {}
        waiting: deque[int] = deque()
        for entry in entries:
            node = self._to[entry]
            if self._residual[entry] and node not in level:
                level[node] = 1
                waiting.append(node)
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                other = self._to[edge]
                if (
                    self._residual[edge]
                    and other not in level
                    and (other in members or other == SINK)
                ):
                    level[other] = level[node] + 1
                    if other != SINK:
                        waiting.append(other)
        return level

    def _push(self, entry: int, level: dict[int, int], position: dict[int, int]) -> bool:
        """Push flow along one path of the level graph; return whether there was one."""
        path = [entry]
        while True:
            node = self._to[path[-1]]
            if node == SINK:
                amount = min(self._residual[edge] for edge in path)
                if amount > INFINITE >> 1:
                    raise ValueError("something that must be on one side must be on the other too")
                for edge in path:
                    self._residual[edge] -= amount
                    self._residual[edge ^ 1] += amount
                return True
            edges = self._edges[node]
            at = position.get(node, len(edges))
            while at < len(edges):
                edge = edges[at]
                other = self._to[edge]
                if self._residual[edge] and level.get(other) == level[node] + 1:
                    break
                at += 1
            position[node] = at
            if at < len(edges):
                path.append(edges[at])
                continue
            level.pop(node, None)  # a dead end
            path.pop()
            if not path:
                return False
            previous = self._to[path[-1]]
            position[previous] += 1
