"""The command ``narrowpass cache``: files of packed weights."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import json_option, parse_bytes
from narrowpass.cli.output import print_json

if TYPE_CHECKING:
    from narrowpass_planning.weights.folder import Listed

_folder_option = click.option(
    "--cache-dir",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files are.  [default: NARROWPASS_CACHE_DIR, or the user's cache directory]",
)


@click.group()
def cache() -> None:
    """Look after the files of packed weights that xnn-cpu keeps between processes.

    Bundles that sessions of narrowpass-onnxruntime keep there are listed and deleted, too. Such a
    file can always be deleted: what is missing is built and packed again.
    """


@cache.command("list")
@_folder_option
@json_option
def list_(cache_dir: Path | None, as_json: bool) -> None:
    """List the files, those used last first, and what killed writers left behind.

    The JSON document has the keys folder and files: path, bytes, used (seconds since 1970), blocks
    (0 of a bundle) and problem (null, or why it is of no use on this machine) of each.
    """
    _show(cache_dir, as_json, verify=False)


@cache.command()
@_folder_option
@json_option
def verify(cache_dir: Path | None, as_json: bool) -> None:
    """Read all files and compare them with their checksums; exit with 1 if one is damaged.

    The JSON document is that of `list`.
    """
    found = _show(cache_dir, as_json, verify=True)
    if any(item.problem and not item.is_leftover and not item.is_foreign for item in found):
        raise click.exceptions.Exit(1)


@cache.command()
@click.option(
    "--max-size",
    required=True,
    metavar="SIZE",
    help="What may stay, in bytes or with a unit: 500MB, 2GiB.",
)
@_folder_option
@json_option
def prune(max_size: str, cache_dir: Path | None, as_json: bool) -> None:
    """Delete files until those left are no larger: useless ones, then the longest unused.

    Programs that have one mapped keep it. The JSON document is that of `list`, of the files that
    were deleted.
    """
    from narrowpass_planning.weights import folder
    from narrowpass_xnn_cpu.native.packer import PACKER

    place = folder.chosen_folder(cache_dir)
    deleted = folder.prune(place, parse_bytes("--max-size", max_size), PACKER)
    if as_json:
        _print_json(place, deleted)
        return
    size = sum(item.size for item in deleted)
    click.echo(f"deleted {len(deleted)} files ({size / 1e6:.1f} MB)")


def _show(cache_dir: Path | None, as_json: bool, *, verify: bool) -> list[Listed]:
    from narrowpass_planning.weights import folder
    from narrowpass_xnn_cpu.native.packer import PACKER

    place = folder.chosen_folder(cache_dir)
    found = folder.listed(place, PACKER, verify=verify)
    if as_json:
        _print_json(place, found)
        return found
    for item in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used))
        state = item.problem or ("bundle" if item.is_bundle else f"{item.blocks} blocks")
        click.echo(f"{item.path.stem[:16]}  {item.size / 1e6:9.1f} MB  used {used}  {state}")
    total = sum(item.size for item in found)
    click.echo(f"{len(found)} files, {total / 1e6:.1f} MB in {place}")
    return found


def _print_json(place: Path, items: Iterable[Listed]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "path": str(item.path),
            "bytes": item.size,
            "used": item.used,
            "blocks": item.blocks,
            "problem": item.problem or None,
        }
        for item in items
    ]
    print_json({"folder": str(place), "files": rows})
