"""The importer of GGUF files: a decoder's methods, its tokenizer and its chat template."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import ClassVar

from narrowpass_decoders import build_decoder
from narrowpass_ir.errors import ModelError
from narrowpass_ir.importing import Imported, Importer

MAGIC = b"GGUF"


class GgufImporter(Importer):
    """Reads a language model from a GGUF file as the methods ``prefill`` and ``decode``.

    Blocks of integers are kept without loss in forms of ONNX; see `narrowpass_gguf.blocks`. The
    tokenizer and the chat template become assets.
    """

    name: ClassVar[str] = "gguf"
    suffixes: ClassVar[tuple[str, ...]] = (".gguf",)

    def probe(self, path: str) -> bool:
        """Return whether the file is called ``.gguf``, or begins as such files do."""
        file = Path(path)
        try:
            if not file.is_file():
                return False
            if file.suffix.lower() in self.suffixes:
                return True
            with file.open("rb") as opened:
                return opened.read(len(MAGIC)) == MAGIC
        except (OSError, ValueError):
            return False

    def load(self, path: str) -> Imported:
        """Read a file.

        Raises:
            ModelError: it is damaged, or of an architecture that is not supported.
        """
        from narrowpass_gguf.architecture import config_of, names_of
        from narrowpass_gguf.assets import assets_of
        from narrowpass_gguf.metadata import Metadata
        from narrowpass_gguf.weights import GgufWeights

        try:
            metadata = Metadata.read(path)
            weights = GgufWeights(metadata, names_of(metadata))
            config = config_of(metadata, weights)
            methods = build_decoder(config, weights)
            weights.check_used()
            assets, notes = assets_of(metadata, config)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        except IndexError as error:
            raise ModelError(
                f"{path}: cannot be read as a GGUF file: it is cut short; download it again"
            ) from error
        except (ValueError, KeyError, TypeError, OverflowError, struct.error) as error:
            raise ModelError(
                f"{path}: cannot be read as a GGUF file: it is cut short or damaged ({error}); "
                "download it again"
            ) from error
        return Imported(methods, assets, (*weights.notes(), *notes))
