"""The weights cache: weights are packed once, shared between programs, and kept on disk."""

from narrowpass_planning.weights.cache import ProcessCache, WeightsCache, array_cache
from narrowpass_planning.weights.entry import Block, Entry
from narrowpass_planning.weights.folder import chosen_folder
from narrowpass_planning.weights.packer import Packer, UnusableError
from narrowpass_planning.weights.packing import packing
from narrowpass_planning.weights.session import Counts, Session
from narrowpass_planning.weights.store import ArrayStore, BlockStore, OpenBlocks
from narrowpass_planning.weights.weight import Blocks, Quantized, Weight

__all__ = [
    "ArrayStore",
    "Block",
    "BlockStore",
    "Blocks",
    "Counts",
    "Entry",
    "OpenBlocks",
    "Packer",
    "ProcessCache",
    "Quantized",
    "Session",
    "UnusableError",
    "Weight",
    "WeightsCache",
    "array_cache",
    "chosen_folder",
    "packing",
]
