"""XNNPACK's build and fingerprints, by which cached packed weights are accepted or refused."""

from __future__ import annotations

from narrowpass_planning.weights.packer import UnusableError
from narrowpass_xnn_cpu.native.library import extension


class XnnPacker:
    """See `narrowpass_planning.weights.packer.Packer`."""

    suffix = ".weights"

    def build(self) -> str:
        """Return XNNPACK's build identifier, in hexadecimal digits."""
        ffi, lib = extension().ffi, extension().lib
        size = lib.xnn_experimental_get_build_identifier_size()
        return bytes(ffi.buffer(lib.xnn_experimental_get_build_identifier_data(), size)).hex()

    def fingerprint(self, algorithm: int) -> int:
        """Return XNNPACK's fingerprint of an algorithm on this processor."""
        ffi, lib = extension().ffi, extension().lib
        found = lib.xnn_get_fingerprint(algorithm)
        # Fingerprints are not documented: check that XNNPACK accepts its own.
        if found == ffi.NULL or found.id != algorithm or lib.xnn_check_fingerprint(found[0]):
            raise UnusableError(
                f"XNNPACK does not accept its own fingerprint of algorithm {algorithm}"
            )
        return int(found.value)

    def packs_alike(self, algorithm: int, value: int) -> bool:
        """Return whether an algorithm has this fingerprint here."""
        return not extension().lib.xnn_check_fingerprint((algorithm, value))


PACKER = XnnPacker()
