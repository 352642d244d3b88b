"""List what runs the nodes of the ONNX node suite, or of models, through `xnn-cpu`.

    python tools/fallbacks.py                   # totals, then what is left to the evaluator
    python tools/fallbacks.py --all             # every operator, version and element type
    python tools/fallbacks.py --tests TopK      # the rows of one operator, with their tests
    python tools/fallbacks.py model.onnx ...    # models instead of the suite

Columns: operator, version of its schema, element types of the first input and first output, and how
many nodes are native (a tape, shape arithmetic, or part of another step), run by a numpy kernel, or
by the Python evaluator.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import shape_inference

from narrowpass import load_model
from narrowpass.errors import NarrowpassError
from narrowpass.framework.plugins import load_plugins
from narrowpass.runtime.backend import NodePlan
from narrowpass_reference.onnx_backend import NarrowpassBackend

Row = tuple[str, int, str]
"""An operator, the version of its schema, and element types: of input 0 to output 0."""

Planned = tuple[str, onnx.ModelProto, Sequence[NodePlan]]
"""A model's name, the model, and what runs its nodes."""

NATIVE, NUMPY, EVALUATOR = "native", "numpy", "evaluator"


def place(plan: NodePlan) -> str:
    """Return what runs a node: `NATIVE`, `NUMPY` or `EVALUATOR`."""
    if plan.reason:
        return EVALUATOR
    return NUMPY if plan.kernel.startswith("numpy") else NATIVE


def _dtypes(model: onnx.ModelProto) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inferred = shape_inference.infer_shapes(model).graph
    found = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for value in (*inferred.input, *inferred.output, *inferred.value_info):
        if value.type.HasField("tensor_type"):
            found[value.name] = value.type.tensor_type.elem_type
    return {name: onnx.TensorProto.DataType.Name(code).lower() for name, code in found.items()}


def rows(model: onnx.ModelProto, plans: Sequence[NodePlan]) -> Iterator[tuple[Row, NodePlan]]:
    """Yield each plan with its row."""
    dtypes = _dtypes(model)
    nodes = {node.name or next(filter(None, node.output), ""): node for node in model.graph.node}
    versions = {entry.domain: entry.version for entry in model.opset_import}
    for plan in plans:
        domain, _, kind = plan.op_type.rpartition(".")
        version = 0
        if onnx.defs.has(kind, versions.get(domain, 0), domain):
            version = onnx.defs.get_schema(kind, versions[domain], domain).since_version
        node = nodes.get(plan.node)
        source = dtypes.get(node.input[0], "") if node is not None and node.input else ""
        yield (plan.op_type, version, f"{source}->{plan.dtype}"), plan


def suite(plugins: Any) -> Iterator[Planned]:
    """Yield each model of the node suite that compiles, with its name and plans."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite computes expected values when it is loaded
        cases = load_model_tests(kind="node")
    for case in cases:
        model = case.model
        if model is None:
            continue
        try:
            prepared = NarrowpassBackend.prepare(model, backend="xnn-cpu", plugins=plugins)
        except (NarrowpassError, ValueError) as error:
            sys.stderr.write(f"{case.name}: {error}\n")
            continue
        yield case.name, model, prepared.program.explain()


def files(names: list[str], plugins: Any) -> Iterator[Planned]:
    """Yield each model of these files, with its name and plans."""
    import narrowpass

    for name in names:
        bundle = narrowpass.build(load_model(name), "", plugins=plugins)
        with narrowpass.load(bundle, "xnn-cpu", plugins=plugins) as program:
            yield name, onnx.load(name, load_external_data=False), program.explain()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--all", action="store_true", help="rows without a fallback too")
    parser.add_argument("--tests", metavar="OPERATOR", help="name the tests of an operator")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    plugins = load_plugins()
    counts: Mapping[Row, Counter[str]] = defaultdict(Counter)
    named: Mapping[Row, list[str]] = defaultdict(list)
    reasons: dict[Row, str] = {}
    found = files(options.models, plugins) if options.models else suite(plugins)
    for name, model, plans in found:
        for row, plan in rows(model, plans):
            counts[row][place(plan)] += 1
            named[row].append(f"{name} ({plan.kernel})")
            if plan.reason:
                reasons[row] = plan.reason
    totals = sum(counts.values(), Counter())
    print(", ".join(f"{totals[kind]} {kind}" for kind in (NATIVE, NUMPY, EVALUATOR)))
    for row, count in sorted(counts.items()):
        if not (options.all or count[EVALUATOR] or options.tests == row[0]):
            continue
        if options.tests and options.tests != row[0]:
            continue
        kind, version, dtype = row
        where = "  ".join(f"{count[kind]:4}" for kind in (NATIVE, NUMPY, EVALUATOR))
        print(f"{kind:24} {version:3} {dtype:24} {where}  {reasons.get(row, '')}")
        for test in named[row] if options.tests else ():
            print("    ", test)


if __name__ == "__main__":
    main()
