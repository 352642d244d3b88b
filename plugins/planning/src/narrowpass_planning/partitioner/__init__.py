"""Which operation runs where, and in what order."""

from narrowpass_planning.partitioner.assign import assign
from narrowpass_planning.partitioner.assigned import Assigned, Unit, Where
from narrowpass_planning.partitioner.schedule import schedule

__all__ = [
    "Assigned",
    "Unit",
    "Where",
    "assign",
    "schedule",
]
