"""``narrowpass inspect``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import json_option
from narrowpass.cli.output import format_bytes, print_json, print_table, progress
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import BundleError, ModelError

if TYPE_CHECKING:
    import onnx_ir as ir


@click.command()
@click.argument("path", metavar="BUNDLE|MODEL.onnx")
@click.option(
    "--verify",
    is_flag=True,
    help="Read everything: compare a bundle with its hashes; ask onnx's checker of an ONNX file. "
    "Problems are listed, and the exit code is 1.",
)
@json_option
@pass_state
def inspect(state: State, path: str, verify: bool, as_json: bool) -> None:
    """Summarize a bundle or an ONNX file.

    The JSON document has the keys path, kind (bundle or onnx), bytes (on disk), methods (by name:
    ir_version, opsets, inputs, outputs, nodes, operators, functions, initializers, weight_bytes,
    dtypes, constants and constant_bytes: of tensors in Constant nodes), for a bundle also pipeline,
    plugins and tensors (by data key: dtype, shape, bytes, sha256); and problems (null without
    --verify).
    """
    from narrowpass.bundle import is_bundle
    from narrowpass.driver import check_source

    check_source(path)
    if verify:
        with progress(enabled=not (state.quiet or as_json)) as show:
            problems = _problems(path, show)
        if problems:
            _report_problems(path, problems, as_json=as_json)
    document = _bundle(path) if is_bundle(path) or Path(path).is_dir() else _onnx(path)
    document["problems"] = [] if verify else None
    if as_json:
        print_json(document)
        return
    _print(document)
    if verify:
        click.echo("verified: no problems")


def _problems(path: str, show: Any) -> list[str]:
    from narrowpass import bundle
    from narrowpass_ir.io import check_file, load_model

    if Path(path).is_dir():
        return bundle.verify(path, progress=lambda done, total: show("reading", done, total))
    load_model(path)
    try:
        complaint = check_file(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    return [] if complaint is None else [f"{path}: onnx.checker says: {complaint}"]


def _report_problems(path: str, problems: list[str], *, as_json: bool) -> None:
    """Print problems as the result, and end with an error."""
    folder = Path(path).is_dir()
    if as_json:
        kind = "bundle" if folder else "onnx"
        print_json({"path": path, "kind": kind, "problems": problems})
    else:
        for problem in problems:
            click.echo(problem)
    count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
    if folder:
        raise BundleError(f"{path} is damaged: {count}; build it again, or fetch it again")
    raise ModelError(f"{path}: {count}; export the model again")


def _bundle(path: str) -> dict[str, Any]:
    from narrowpass.bundle import Bundle
    from narrowpass_ir.sizes import disk_bytes

    bundle = Bundle.load(path)
    return {
        "path": path,
        "kind": "bundle",
        "bytes": disk_bytes(path),
        "pipeline": bundle.pipeline,
        "plugins": dict(bundle.plugins),
        "methods": {name: _method(model) for name, model in bundle.methods.items()},
        "tensors": {
            key: {
                "dtype": data.dtype.name.lower(),
                "shape": list(data.shape),
                "bytes": data.nbytes,
                "sha256": data.sha256,
            }
            for key, data in bundle.data.items()
        },
    }


def _onnx(path: str) -> dict[str, Any]:
    from narrowpass_ir.io import load_model
    from narrowpass_ir.sizes import disk_bytes

    model = load_model(path)
    return {
        "path": path,
        "kind": "onnx",
        "bytes": disk_bytes(path, [model]),
        "methods": {"main": _method(model)},
    }


def _method(model: ir.Model) -> dict[str, Any]:
    import onnx_ir as ir

    from narrowpass_ir.sizes import count_bytes, count_nodes
    from narrowpass_ir.subgraphs import model_nodes
    from narrowpass_ir.verify import Signature

    tensors = [
        value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    ]
    operators = Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in model.graph.all_nodes()
    )
    constants = [
        attribute.as_tensor()
        for node in model_nodes(model)
        if node.op_type == "Constant" and not node.domain
        for attribute in node.attributes.values()
        if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR
    ]
    return {
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        **Signature.of(model).to_json(),
        "nodes": count_nodes(model),
        "operators": dict(operators.most_common()),
        "functions": len(model.functions),
        "initializers": len(tensors),
        "weight_bytes": count_bytes(model),
        "dtypes": _dtypes(tensors),
        "constants": len(constants),
        "constant_bytes": sum(tensor.nbytes for tensor in constants),
    }


def _dtypes(tensors: Iterable[ir.TensorProtocol]) -> dict[str, int]:
    return dict(Counter(tensor.dtype.name.lower() for tensor in tensors).most_common())


def _print(document: dict[str, Any]) -> None:
    click.echo(f"{document['path']}: {_kind(document)}, {format_bytes(document['bytes'])}")
    for name, method in document["methods"].items():
        if document["kind"] == "bundle":
            click.echo(f"\nmethod {name}")
        opsets = ", ".join(f"{domain} {version}" for domain, version in method["opsets"].items())
        click.echo(f"IR version {method['ir_version']}, opsets {opsets}")
        dtypes = ", ".join(f"{dtype} {count}" for dtype, count in method["dtypes"].items())
        constants = ""
        if method["constants"]:
            size = format_bytes(method["constant_bytes"])
            constants = f", tensors in Constant nodes {method['constants']} ({size})"
        click.echo(
            f"nodes {method['nodes']}, initializers {method['initializers']} "
            f"({format_bytes(method['weight_bytes'])}{': ' * bool(dtypes)}{dtypes}){constants}\n"
        )
        rows = [
            (
                kind,
                value["name"],
                value["dtype"] or "?",
                _shape(value["shape"]),
                "has a default" if value.get("default") else "",
            )
            for kind, values in (("input", method["inputs"]), ("output", method["outputs"]))
            for value in values
        ]
        columns = ("", "name", "dtype", "shape", "")
        used = len(columns) if any(row[-1] for row in rows) else len(columns) - 1
        print_table(columns[:used], [row[:used] for row in rows])
        click.echo()
        print_table(
            ("operator", "nodes"),
            [(name, str(count)) for name, count in method["operators"].items()],
            right=(1,),
        )


def _kind(document: dict[str, Any]) -> str:
    if document["kind"] == "onnx":
        return "an ONNX model"
    shared = f"tensors in its data map {len(document['tensors'])}"
    origin = (
        f"built with pipeline {document['pipeline']!r}" if document["pipeline"] else "no passes"
    )
    plugins = ", ".join(f"{name} {version}" for name, version in document["plugins"].items())
    return f"a bundle, {origin}{f' by {plugins}' if plugins else ''}, {shared}"


def _shape(shape: list[int | str | None] | None) -> str:
    if shape is None:
        return "?"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
