"""``narrowpass explain``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import (
    backend_option,
    json_option,
    native_option,
    pipeline_option,
    report_writer,
    threads_option,
)
from narrowpass.cli.output import print_json, print_table
from narrowpass.cli.state import State, pass_state
from narrowpass.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass.runtime.backend import Backend, CompileOptions

_ORIGIN = "narrowpass.origin"


@click.command()
@click.argument("model", metavar="BUNDLE|MODEL.onnx")
@click.option("--method", metavar="NAME", help="Which method.  [default: all]")
@backend_option
@pipeline_option
@threads_option
@native_option
@click.option(
    "--report",
    metavar="OUT.html",
    help="Draw the graph, and what each pass decided, as a web page.",
)
@click.option("--stage", metavar="NAME", help="Print what a stage of lowering decided.")
@json_option
@pass_state
def explain(
    state: State,
    model: str,
    method: str | None,
    backend: str | None,
    pipeline: str | None,
    threads: int | None,
    require_native: bool,
    report: str | None,
    stage: str | None,
    as_json: bool,
) -> None:
    """Report where each node runs and what the passes decided.

    A node that does not run natively has the reason beside it.

    With --stage, print what a stage of the backend's lowering decided instead: operations in the
    order in which they run, with their operands, attributes and layouts, as text to be compared.

    A plain ONNX file is built in memory first; a bundle brings the reports of its build.

    The JSON document has the keys model, backend, pipeline and nodes: method, node, op_type,
    dtype, partition, kernel, reason, and decisions (pass, decision, by, reason, measured, limit,
    error) of each; and removed: decisions about nodes and values that are no longer there.
    """
    from narrowpass.cli.options import choose_method
    from narrowpass.driver import open_bundle
    from narrowpass.runtime.backend import CompileOptions, compile_bundle

    write = None if report is None else report_writer(state, report, (model,))
    chosen = state.registry.backend(backend, must_run=stage is None)
    bundle = open_bundle(model, chosen, pipeline=pipeline, plugins=state.plugins)
    if method is not None:
        choose_method(method, list(bundle.methods))
    if backend is None:
        state.note(f"backend: {chosen}")
    options = CompileOptions(threads=threads, require_native=require_native)
    if stage is not None:
        print_stage(chosen, bundle, stage, options)
        return
    with compile_bundle(chosen, bundle, options) as program:
        plans = [plan for plan in program.explain() if method in (None, plan.method)]
    decided = _decisions(bundle, method)
    origins = _function_origins(bundle)
    dtypes = {} if all(plan.dtype for plan in plans) else _dtypes(bundle)
    nodes = []
    found = set()
    for plan in plans:
        key = plan.method, plan.node
        about = (plan.method, origins.get(key, plan.node))
        found.add(about)
        dtype = plan.dtype or dtypes.get(key, "")
        nodes.append({**plan.to_json(), "dtype": dtype, "decisions": decided.get(about, [])})
    nodes += _inlined_bodies(bundle, decided, found)
    removed = [
        {"method": name, "node": node, **decision}
        for (name, node), decisions in decided.items()
        for decision in decisions
        if (name, node) not in found
    ]
    if write is not None:
        write(bundle, model)
    if as_json:
        print_json(
            {
                "model": model,
                "backend": str(chosen),
                "pipeline": bundle.pipeline,
                "nodes": nodes,
                "removed": removed,
            }
        )
        return
    _print(nodes, removed, several=len(bundle.methods) > 1 and method is None)
    if report is not None:
        click.echo(f"wrote {report}")


def print_stage(backend: Backend, bundle: Bundle, stage: str, options: CompileOptions) -> None:
    """Print what a stage of a backend's lowering decided.

    Raises:
        UsageError: the backend has no such stage.
    """
    if stage not in backend.stages:
        known = ", ".join(backend.stages) or "none"
        raise UsageError(f"backend {backend.name!r} has no stage {stage!r}; its stages: {known}")
    click.echo(backend.plan_text(bundle, stage, options), nl=False)


def _function_nodes(model: ir.Model) -> Iterator[tuple[str, ir.Node, str]]:
    """Yield the nodes of functions, with the name that decisions have, and the function's."""
    for function in model.functions.values():
        for node in function.all_nodes():
            yield f"{function.name}/{_label(node)}", node, function.name


def _label(node: ir.Node) -> str:
    return node.name or next((value.name for value in node.outputs if value.name), "")


def _function_origins(bundle: Bundle) -> dict[tuple[str, str], str]:
    """Return the names that nodes of functions have in decisions, by method and name when inlined.

    A backend that puts functions in the place of their calls does it as here, and the nodes get
    the same names.
    """
    from narrowpass_ir.subgraphs import inline_functions

    found: dict[tuple[str, str], str] = {}
    for method, model in bundle.methods.items():
        if not model.functions:
            continue
        clone = model.clone()
        for name, node, _ in _function_nodes(clone):
            node.metadata_props[_ORIGIN] = name
        for node in inline_functions(clone).graph.all_nodes():
            if _ORIGIN in node.metadata_props:
                found[method, _label(node)] = node.metadata_props[_ORIGIN]
    return found


def _inlined_bodies(
    bundle: Bundle,
    decided: Mapping[tuple[str, str], list[dict[str, Any]]],
    found: set[tuple[str, str]],
) -> list[dict[str, Any]]:
    """Return rows for decided nodes of functions that the backend runs as they are.

    They are added to `found`.
    """
    from narrowpass.runtime.backend import NodePlan

    rows = []
    for method, model in bundle.methods.items():
        for name, node, function in _function_nodes(model):
            key = method, name
            if key in found or key not in decided:
                continue
            found.add(key)
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            dtype = node.outputs[0].dtype if node.outputs else None
            named = "" if dtype is None else dtype.name.lower()
            plan = NodePlan(method, name, operator, named, None, f"within {function}")
            rows.append({**plan.to_json(), "decisions": decided[key]})
    return rows


def _dtypes(bundle: Bundle) -> dict[tuple[str, str], str]:
    """Infer the types of nodes' first outputs, by method and node, for models without them.

    On clones, and after compiling: what is explained is what runs, and that knows no more types
    than the model has.
    """
    from onnx_ir.passes.common import ShapeInferencePass

    found: dict[tuple[str, str], str] = {}
    for name, model in bundle.methods.items():
        inferred = ShapeInferencePass()(model.clone()).model
        for node in inferred.graph.all_nodes():
            dtype = node.outputs[0].dtype if node.outputs else None
            if node.name and dtype is not None:
                found[name, node.name] = dtype.name.lower()
    return found


def _decisions(bundle: Bundle, method: str | None) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return what the passes decided by method and node, in the order of the passes."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for report in bundle.reports:
        for name, part in report.methods.items():
            if method not in (None, name):
                continue
            for decision in part.decisions:
                described = {key: value for key, value in decision.items() if key != "node"}
                found[name, str(decision.get("node", ""))].append(
                    {"pass": report.name, **described}
                )
    return found


def _described(decision: dict[str, Any]) -> str:
    text = f"{decision['pass']}: {decision.get('decision', '')}"
    if decision.get("reason"):
        text += f" ({decision['reason']})"
    if "measured" in decision and "limit" in decision:
        text += f" [{decision['measured']:.4g}, limit {decision['limit']:.4g}]"
    if "error" in decision:
        text += f" [error {decision['error']:.2g}]"
    return text


def _print(nodes: list[dict[str, Any]], removed: list[dict[str, Any]], *, several: bool) -> None:
    def where(row: dict[str, Any]) -> str:
        if row["partition"] is None:
            return str(row["kernel"])
        return f"{row['kernel']} #{row['partition']}"

    shown = {
        "method": [row["method"] for row in nodes] if several else [],
        "node": [row["node"] or "(unnamed)" for row in nodes],
        "operator": [row["op_type"] for row in nodes],
        "dtype": [row["dtype"] for row in nodes],
        "runs on": [where(row) for row in nodes],
        "decisions": ["; ".join(map(_described, row["decisions"])) for row in nodes],
        "why not native": [row["reason"] for row in nodes],
    }
    # Columns that say nothing only take the room of the others.
    columns = {title: cells for title, cells in shown.items() if any(cells)}
    print_table(list(columns), list(zip(*columns.values(), strict=True)))
    counts: dict[str, int] = defaultdict(int)
    for decision in removed:
        counts[f"{decision['pass']}: {decision.get('decision', '')}"] += 1
    for what, count in counts.items():
        click.echo(f"{count} nodes or values no longer there, {what}; --json lists them")
