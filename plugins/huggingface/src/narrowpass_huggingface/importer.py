"""The importer of folders with ``config.json`` and safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from narrowpass_decoders import build_decoder, build_encoder
from narrowpass_ir.errors import ModelError
from narrowpass_ir.importing import Imported, Importer

_ASSETS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_LARGEST = 256 << 20


class FolderImporter(Importer):
    """Reads a folder with ``config.json``, safetensors and, where it is there, ``tokenizer.json``.

    Decoders have the methods ``prefill`` and ``decode``, encoders ``main``. Weights of float32 are
    mapped, and those of float16 and bfloat16 converted to float32 piece by piece where they are
    read.
    """

    name: ClassVar[str] = "huggingface"

    def probe(self, path: str) -> bool:
        """Return whether it is a folder with ``config.json`` that is no bundle."""
        folder = Path(path)
        try:
            return (folder / "config.json").is_file() and not (folder / "manifest.json").exists()
        except (OSError, ValueError):
            return False

    def load(self, path: str) -> Imported:
        """Read a folder.

        Raises:
            ModelError: a file is missing or damaged, or the architecture is not supported.
        """
        from narrowpass_huggingface.architecture import decoder_of
        from narrowpass_huggingface.encoders import encoder_of, is_encoder
        from narrowpass_huggingface.settings import Settings
        from narrowpass_huggingface.tensors import FolderWeights, read_tensors

        try:
            settings = Settings.read(Path(path) / "config.json")
            tensors = read_tensors(Path(path))
            if is_encoder(settings):
                encoder, names = encoder_of(settings, tensors)
                weights = FolderWeights(tensors, names)
                methods = {"main": build_encoder(encoder, weights)}
                notes = weights.left_out()
            else:
                config, names = decoder_of(settings, tensors)
                weights = FolderWeights(tensors, names)
                methods = build_decoder(config, weights)
                weights.check_used()
                notes = []
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ModelError(
                f"{path}: config.json has a value that is not supported: {error}"
            ) from error
        return Imported(methods, _assets(Path(path)), tuple(notes))


def _assets(folder: Path) -> dict[str, bytes]:
    found = {}
    for name in _ASSETS:
        file = folder / name
        if not file.is_file():
            continue
        if file.stat().st_size > _LARGEST:
            raise ModelError(f"{file}: has more than {_LARGEST >> 20} MB, and is no {name}")
        found[name] = file.read_bytes()
    return found
