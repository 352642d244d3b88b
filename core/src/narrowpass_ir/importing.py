"""What importers are: objects that read models of other formats into models of onnx-ir."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from narrowpass_ir.arguments import instance_of
from narrowpass_ir.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

_ASSET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_RESERVED = {"manifest.json", "weights.safetensors", "reports"}


@dataclass(frozen=True)
class Imported:
    """What an importer reads from a source.

    Attributes:
        methods: a model for each method, by its name. Models may share tensors.
        assets: small files that belong to the models, such as ``tokenizer.json``, by name.
        notes: a sentence for each loss: what the source holds and the models do not.
    """

    methods: Mapping[str, ir.Model]
    assets: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()


class Importer(ABC):
    """Reads sources of one format.

    Attributes:
        name: what messages call it.
        suffixes: of the names of files that it reads, such as ``.gguf``; empty where it reads
            folders.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def probe(self, path: str) -> bool:
        """Return whether `path` is a file or folder of this format, whole or damaged.

        Looks at names and first bytes only, and raises nothing where there is none.
        """

    @abstractmethod
    def load(self, path: str) -> Imported:
        """Read a source whose `probe` is true. Weights stay in their files where they can.

        Raises:
            InputError: it is damaged, or holds what this importer does not support; the message
                names it and says what to do.
        """


def check_assets(assets: object) -> Mapping[str, bytes]:
    """Return assets if each can be a file at the top of a bundle's folder.

    Args:
        assets: bytes by file name.

    Raises:
        UsageError: no mapping of bytes, or a name with other characters than letters, digits, '_',
            '.' and '-', or one that a bundle needs for itself.
    """
    given = instance_of(assets, Mapping, "the assets of a bundle", "a dict of bytes by file name")
    for name, data in given.items():
        if not isinstance(name, str) or not _ASSET.fullmatch(name) or name.endswith("."):
            raise UsageError(
                f"asset {name!r}: use a file name of letters, digits, '_', '.' and '-', without a "
                "folder, not '.' or '-' first nor '.' last"
            )
        if name.lower() in _RESERVED or name.lower().endswith(".onnx"):
            raise UsageError(f"asset {name!r}: a bundle needs this name itself; choose another")
        instance_of(data, bytes, f"asset {name!r}", "bytes")
    return MappingProxyType(dict(given))
