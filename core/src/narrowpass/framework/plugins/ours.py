"""Which distribution of this project has what, for messages where it is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CONTENTS = {
    "narrowpass-constant-folding": (
        "cse",
        "dead-code",
        "dedup-weights",
        "drop-casts",
        "eliminate-identity",
        "expand-operators",
        "fold",
        "fold-constants",
        "fuse-batchnorm",
        "fuse-bias",
        "fuse-pad",
        "infer-shapes",
        "inline-if",
        "merge-reshapes",
        "merge-transposes",
        "unpack-sequences",
        "upgrade-opset",
        "freeze-weights",
    ),
    "narrowpass-fp16": ("fp16",),
    "narrowpass-int8-sym": ("int8-sym", "equalize", "repair-quantized"),
    "narrowpass-xnn-cpu": ("store-weights",),
}

PASSES: Mapping[str, str] = MappingProxyType(
    {name: distribution for distribution, names in _CONTENTS.items() for name in names}
)
"""The distribution that has a pass, by the pass's name."""

BACKENDS: Mapping[str, str] = MappingProxyType({"xnn-cpu": "narrowpass-xnn-cpu"})
"""The distribution that has a backend, by the backend's name."""
