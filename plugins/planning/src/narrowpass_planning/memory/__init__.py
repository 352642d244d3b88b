"""Memory of packed weights and of inner values: who allocates it, and where values lie in it."""

from narrowpass_planning.memory.allocator import Allocator, HeapAllocator, allocating
from narrowpass_planning.memory.arena import Lifetime, place
from narrowpass_planning.memory.recycling import Recycled
from narrowpass_planning.memory.workspace import Workspace

__all__ = [
    "Allocator",
    "HeapAllocator",
    "Lifetime",
    "Recycled",
    "Workspace",
    "allocating",
    "place",
]
