"""Memory of packed weights and intermediate values: allocators, the arena planner, workspaces."""

from narrowpass_planning.memory.allocator import Allocator, HeapAllocator, allocating
from narrowpass_planning.memory.arena import Lifetime, plan_arena
from narrowpass_planning.memory.caching_allocator import CachingAllocator
from narrowpass_planning.memory.workspace import Workspace

__all__ = [
    "Allocator",
    "CachingAllocator",
    "HeapAllocator",
    "Lifetime",
    "Workspace",
    "allocating",
    "plan_arena",
]
