"""``narrowpass convert``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import choose_method, json_option, method_option
from narrowpass.cli.output import format_bytes, print_json, print_table
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import ModelError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass.framework.plugins import Registry

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
"""Domains of operators that every runtime of ONNX may be expected to know."""

_PASS = "expand-operators"


@click.command()
@click.argument("source", metavar="BUNDLE")
@click.argument("output", metavar="OUT.onnx|FOLDER")
@method_option
@json_option
@pass_state
def convert(state: State, source: str, output: str, method: str | None, as_json: bool) -> None:
    """Write the methods of a bundle as ONNX files of standard operators.

    OUT.onnx is one method, with its weights inside or, beyond 2 GiB, in a file beside. A FOLDER
    gets NAME.onnx for each method, and the assets of the bundle, such as config.json and
    tokenizer.json. Operators of other domains, such as com.microsoft, are written with those of
    ONNX, by the pass expand-operators; one that it does not know is an error, and nothing is
    written.

    The JSON document has the keys output, methods (by name: path, bytes, nodes and opsets) and
    assets (their paths).
    """
    from narrowpass.bundle import Bundle, is_bundle
    from narrowpass.driver import check_source

    check_source(source)
    if not is_bundle(source):
        raise UsageError(
            f"{source}: is no bundle; another model is written with standard operators by "
            f"narrowpass build {source} -p {_PASS} -o OUT.onnx"
        )
    alone = output.endswith(".onnx")
    _check_output(source, output, alone=alone)
    bundle = Bundle.load(source)
    names = list(bundle.methods)
    if alone and method is None and len(names) > 1:
        raise UsageError(
            f"{output} can hold one method, not {len(names)} ({', '.join(names)}); name one with "
            "--method, or a folder for all"
        )
    if alone or method is not None:
        names = [choose_method(method, names)]
    models = {name: standard(name, bundle.methods[name], state.registry) for name in names}
    document = _write(bundle, models, Path(output), alone=alone)
    if as_json:
        print_json(document)
        return
    print_table(
        ("method", "file", "size", "nodes"),
        [
            (name, row["path"], format_bytes(row["bytes"]), str(row["nodes"]))
            for name, row in document["methods"].items()
        ],
        right=(2, 3),
    )
    if document["assets"]:
        click.echo(f"wrote {', '.join(document['assets'])}")


def standard(name: str, model: ir.Model, registry: Registry) -> ir.Model:
    """Return a model without operators of other domains; the same one where it has none.

    Args:
        name: of the method, for messages.
        model: not changed.
        registry: has the pass that expands operators.

    Raises:
        ModelError: an operator that cannot be written with those of ONNX.
    """
    from narrowpass.framework.context import Context
    from narrowpass.framework.pipeline import Pipeline

    others = _other_operators(model)
    if not others:
        return model
    if _PASS in registry.passes:
        model = Pipeline.of(_PASS, registry).run(model, Context()).model
        others, instead = _other_operators(model), "the pass expand-operators does not know them"
    else:
        instead = registry.unknown("pass", _PASS, registry.passes)
    if others:
        listing = ", ".join(f"{name} ({count})" for name, count in others.most_common())
        raise ModelError(
            f"method {name!r} has operators that are not ONNX's own: {listing}; {instead}"
        )
    return model


def _other_operators(model: ir.Model) -> Counter[str]:
    """Count the operators of other domains that the model itself does not define."""
    from narrowpass_ir.subgraphs import model_nodes

    defined = {(key[0], key[1]) for key in model.functions}
    return Counter(
        f"{node.domain}.{node.op_type}"
        for node in model_nodes(model)
        if node.domain not in STANDARD_DOMAINS and (node.domain, node.op_type) not in defined
    )


def _check_output(source: str, output: str, *, alone: bool) -> None:
    """Refuse early what must not be replaced."""
    from narrowpass_ir.files import check_result_file

    check_result_file(output, "the output", [source])
    path = Path(output)
    if not path.parent.is_dir():
        raise UsageError(f"{output}: the folder {path.parent} does not exist; create it first")
    if not alone and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(
            f"{output}: exists, and is no empty folder; choose another name, or one that ends in "
            ".onnx for one method"
        )


def _write(
    bundle: Bundle, models: dict[str, ir.Model], output: Path, *, alone: bool
) -> dict[str, Any]:
    """Write the files; return what the command prints."""
    from narrowpass_ir.files import create_folder, replacing_file
    from narrowpass_ir.io import save_model
    from narrowpass_ir.sizes import count_nodes, disk_bytes

    if not alone and not output.exists():
        create_folder(output)
    methods = {}
    for name, model in models.items():
        path = output if alone else output / f"{name}.onnx"
        save_model(model, path)
        methods[name] = {
            "path": str(path),
            "bytes": disk_bytes(path),
            "nodes": count_nodes(model),
            "opsets": {domain or "ai.onnx": v for domain, v in model.opset_imports.items()},
        }
    assets = []
    for name, data in {} if alone else bundle.assets.items():
        with replacing_file(output / name) as file:
            file.write(data)
        assets.append(str(output / name))
    return {"output": str(output), "methods": methods, "assets": assets}
