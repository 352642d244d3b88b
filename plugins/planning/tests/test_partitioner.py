"""The target of each operation, and the order in units: rules by examples, and random graphs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import GUARD, OUR_DOMAIN, Op
from narrowpass_planning.partitioner import Assignment, Target, Unit, assign, schedule
from narrowpass_planning.weights import Weight

pytestmark = pytest.mark.anywhere
NATIVE, HOST, SHAPES, WEIGHTS = Target.NATIVE, Target.HOST, Target.SHAPES, Target.WEIGHTS


# Order


def graph_of(targets: Sequence[Target], reads: Mapping[int, Sequence[int]]) -> list[Assignment[Op]]:
    """Return operations that read the outputs of earlier ones, by their numbers."""
    values = [ir.Value(name=f"v{number}") for number in range(len(targets))]
    return [
        Assignment(Op("op", [values[n] for n in reads.get(number, ())], [value], {}, 1), target)
        for number, (target, value) in enumerate(zip(targets, values, strict=True))
    ]


def numbers(units: Sequence[Unit[Op]], assigned: Sequence[Assignment[Op]]) -> list[list[int]]:
    places = {id(entry): number for number, entry in enumerate(assigned)}
    return [[places[id(entry)] for entry in unit.ops] for unit in units]


def levels(assigned: Sequence[Assignment[Op]], reads: Mapping[int, Sequence[int]]) -> int:
    """Return the partitions that a graph needs, by the longest path through it.

    On a path each run of native operations that a host operation ends needs one; and all native
    operations that no host operation waits for are in one more.
    """
    users = {number: [n for n, given in reads.items() if number in given] for number in range(99)}

    def waited_for(number: int) -> bool:
        return any(assigned[n].target is HOST or waited_for(n) for n in users[number])

    def depth(number: int) -> int:
        """Return the native runs that are over before, or with, an operation."""
        ended = [
            depth(n) + (assigned[n].target is NATIVE and assigned[number].target is HOST)
            for n in reads.get(number, ())
            if assigned[n].target is not WEIGHTS
        ]
        # What follows from shapes is in the unit that has its inputs.
        return max(ended, default=0)

    hosts = [depth(n) for n, entry in enumerate(assigned) if entry.target is HOST]
    late = [n for n, e in enumerate(assigned) if e.target is NATIVE and not waited_for(n)]
    return max(hosts, default=0) + bool(late)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed):
    rng = random.Random(seed)
    count = rng.randrange(1, 14)
    kinds = rng.choice([[NATIVE, HOST], [NATIVE, HOST, WEIGHTS]])
    targets = [rng.choice(kinds) for _ in range(count)]
    reads = {
        n: rng.sample(range(n), min(n, rng.randrange(3)))
        for n in range(count)
        if targets[n] is not WEIGHTS  # which reads constants alone
    }
    assigned = graph_of(targets, reads)
    units = schedule(assigned)
    order = [n for unit in numbers(units, assigned) for n in unit]
    assert sorted(order) == [n for n in range(count) if targets[n] is not WEIGHTS]
    for number in order:
        for source in reads[number]:
            if targets[source] is not WEIGHTS:
                assert order.index(source) < order.index(number)
    for unit in units:
        assert {entry.target for entry in unit.ops} == {NATIVE if unit.native else HOST}
    for one, other in itertools.pairwise(units):
        assert one.native != other.native
    assert sum(unit.native for unit in units) == levels(assigned, reads)


def test_ready_operations_run_in_the_order_of_the_graph():
    reads = {3: [1], 4: [0], 5: [2]}
    assigned = graph_of([NATIVE] * 6, reads)
    assert numbers(schedule(assigned), assigned) == [[0, 1, 2, 3, 4, 5]]
    reads = {1: [4], 2: [3]} | {0: [2]}
    assigned = graph_of([HOST] * 5, reads)
    assert numbers(schedule(assigned), assigned) == [[3, 2, 0, 4, 1]]


def test_native_operations_that_no_host_waits_for_come_last():
    """In one partition, behind the last host operation."""
    reads = {2: [0], 3: [2], 4: [1]}
    assigned = graph_of([NATIVE, NATIVE, HOST, NATIVE, NATIVE], reads)
    assert numbers(schedule(assigned), assigned) == [[0], [2], [1, 3, 4]]
    assert [unit.native for unit in schedule(assigned)] == [True, False, True]


def test_what_follows_from_shapes_is_in_the_unit_that_can_have_it_first():
    reads = {1: [0], 2: [1], 3: [2], 4: [3]}
    assigned = graph_of([SHAPES, HOST, SHAPES, NATIVE, SHAPES], reads)
    assert numbers(schedule(assigned), assigned) == [[0, 1, 2], [3, 4]]
    assigned = graph_of([NATIVE, SHAPES, NATIVE], {1: [0], 2: [1]})
    assert numbers(schedule(assigned), assigned) == [[0, 1, 2]]


def test_what_is_packed_is_in_no_unit_and_waits_for_nothing():
    assigned = graph_of([WEIGHTS, NATIVE, WEIGHTS], {1: [0]})
    assert numbers(schedule(assigned), assigned) == [[1]]
    assert schedule(graph_of([WEIGHTS], {})) == []
    assert schedule([]) == []


def test_a_value_that_is_read_twice_is_waited_for_once():
    values = [ir.Value(name=name) for name in "ab"]
    ops = [Op("op", [], [values[0]], {}, 1), Op("op", [values[0]] * 2, [values[1]], {}, 1)]
    assigned = [Assignment(op, NATIVE) for op in ops]
    assert numbers(schedule(assigned), assigned) == [[0, 1]]


# Targets


def targets_of(
    body: str,
    *,
    inputs: str = "float[N, 4] x, float[4] t",
    rejected: Sequence[str] = ("NonZero",),
    observed: Sequence[str] = (),
    change=lambda op: op,
) -> tuple[dict[str, Target], list[Assignment[Op]], Facts]:
    """Assign the operations of a graph, whose last value is y.

    Args:
        body: nodes, in ONNX's syntax.
        inputs: of the graph.
        rejected: operators that the backend has not.
        observed: see `Facts`.
        change: returns another operation in place of one.

    Returns:
        The targets by the names of the first outputs; the assignments; and the facts.
    """
    model = ir.from_proto(
        onnx.shape_inference.infer_shapes(
            onnx.parser.parse_model(
                f"""<ir_version: 9, opset_import: ["" : 18, "{OUR_DOMAIN}" : 1]>
                g ({inputs}) => (y) <float[4] w = {{1, 2, 3, 4}}> {{ {body} }}"""
            )
        )
    )
    facts = Facts(model.graph, observed=observed)
    ops = [change(Op.of(node, 18)) for node in model.graph]

    def reason(op: Op, known: Facts) -> str | None:
        assert known is facts
        return f"no {op.kind}" if op.kind in rejected else None

    found = assign(ops, facts, reason)
    assert [entry.op for entry in found] == ops
    return {entry.op.output.name or "": entry.target for entry in found}, found, facts


def test_the_backend_decides_about_what_depends_on_values():
    targets, found, _ = targets_of("a = Relu(x) i = NonZero(a) f = Cast <to = 1> (i) y = Neg(f)")
    assert targets == {"a": NATIVE, "i": HOST, "f": NATIVE, "y": NATIVE}
    assert [entry.reason for entry in found] == ["", "no NonZero", "", ""]


def test_what_follows_from_shapes():
    targets, _, facts = targets_of(
        "s = Shape(x) n = Size(x) z = Constant <value_ints = [0]> () a = Gather(s, z) "
        "b = Mul(a, n) c = Range(n, n, n) e = Expand(x, s) y = Mul(e, e)"
    )
    native = [name for name, target in targets.items() if target is NATIVE]
    assert native == ["e", "y"]
    assert {name for name, target in targets.items() if target is SHAPES} == set("snzabc")
    assert facts.fixed == set("snzabc")


def test_all_inputs_must_be_known():
    targets, *_ = targets_of("s = Shape(x) f = Cast <to = 1> (s) c = Clip(f, , f) y = Mul(c, x)")
    assert targets == {"s": SHAPES, "f": SHAPES, "c": SHAPES, "y": NATIVE}


def test_random_numbers_are_drawn_in_each_run():
    targets, *_ = targets_of("s = Shape(x) c = Cast <to = 1> (s) y = RandomNormalLike(c)")
    assert targets["y"] is NATIVE


def test_what_was_derived_is_packed():
    targets, found, facts = targets_of("d = Neg(w) y = Mul(x, d)")
    assert targets["d"] is SHAPES
    facts.derive(found[0].op.output, Weight.of(np.float32([-1, -2, -3, -4])))
    again = assign([entry.op for entry in found], facts, lambda op, known: None)
    assert [entry.target for entry in again] == [WEIGHTS, NATIVE]


@pytest.mark.parametrize("source", ["s", "x"])
def test_a_guard_follows_from_what_it_guards(source):
    body = f"s = Shape(x) g = {OUR_DOMAIN}.{GUARD}({source}) y = Relu(x)"
    assert targets_of(body)[0]["g"] is (SHAPES if source == "s" else NATIVE)


def test_a_guard_of_another_domain_is_none():
    body = f"s = Shape(x) g = other.{GUARD}(s) y = Relu(x)"
    model = f"""<ir_version: 9, opset_import: ["" : 18, "other" : 1]>
        g (float[N, 4] x) => (float[N, 4] y) {{ {body} }}"""
    inferred = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(model))
    graph = ir.from_proto(inferred).graph
    facts = Facts(graph)
    found = assign([Op.of(node, 18) for node in graph], facts, lambda op, known: None)
    assert [entry.target for entry in found] == [SHAPES, NATIVE, NATIVE]


# Tiny operations


def tiny(body: str = "a = Neg(t) y = NonZero(a)", **more: object) -> Target:
    """Return the target of `a`."""
    return targets_of(body, **more)[0]["a"]


def test_numpy_computes_what_is_tiny_and_only_host_operations_read():
    targets, found, _ = targets_of("a = Neg(t) b = Abs(a) y = NonZero(b)")
    assert targets == {"a": HOST, "b": HOST, "y": HOST}
    assert [entry.reason for entry in found] == ["", "", "no NonZero"]


@pytest.mark.parametrize(
    ("shape", "target"),
    [("16", HOST), ("17", NATIVE), ("4, 4", HOST), ("2, 9", NATIVE), ("N", NATIVE)],
)
def test_what_is_tiny(shape, target):
    assert tiny(inputs=f"float[{shape}] t") is target


def test_a_scalar_is_tiny():
    assert tiny(inputs="float t") is HOST


def test_inputs_and_outputs_must_be_tiny():
    assert tiny("a = ReduceSum <keepdims = 0> (x) y = NonZero(a)", inputs="float[17] x") is NATIVE
    expanded = "c = Constant <value_ints = [17]> () a = Expand(t, c) y = NonZero(a)"
    assert tiny(expanded, inputs="float[1] t") is NATIVE
    assert tiny(expanded.replace("17", "16"), inputs="float[1] t") is HOST


def test_a_value_of_unknown_rank_is_not_tiny():
    def forget(op: Op) -> Op:
        op.output.shape = None
        return op

    assert tiny(change=forget) is NATIVE


def test_an_observed_value_is_not_left_to_numpy():
    assert tiny(observed=["a"]) is NATIVE
    assert tiny(observed=["b"]) is HOST


def test_what_native_operations_compute_stays_native():
    body = "b = Neg(x) c = ReduceSum(b) a = Neg(c) i = NonZero(a) y = NonZero(b)"
    assert tiny(body, inputs="float[3, 40] x") is NATIVE
    # What was left to numpy is no longer native.
    assert tiny("c = Neg(t) a = Abs(c) y = NonZero(a)") is HOST


def test_what_is_tiny_behind_what_is_not():
    """Each of the others is passed over for a reason of its own: size, kernel, and users."""
    for other in ("b = Neg(x) h = NonZero(b)", "b = Erf(t) h = NonZero(b)", "b = Neg(t)"):
        body = f"{other} a = Neg(t) y = NonZero(a)"
        assert tiny(body, inputs="float[17] x, float[4] t") is HOST


def test_what_nothing_of_the_host_reads_stays_native():
    assert tiny("a = Neg(t) y = Abs(a)") is NATIVE
    assert tiny("a = Neg(t) b = NonZero(a) y = Abs(a)") is HOST


def test_fused_operations_stay_native():
    def fuse(op: Op) -> Op:
        if op.output.name != "a":
            return op
        return dataclasses.replace(op, nodes=[*op.nodes, *op.nodes])

    def rename(op: Op) -> Op:
        return dataclasses.replace(op, kind="Abs") if op.output.name == "a" else op

    assert tiny(change=fuse) is NATIVE
    assert tiny(change=rename) is NATIVE


def test_what_numpy_has_no_kernel_for_stays_native():
    body = "a = Erf(t) y = NonZero(a)"
    assert tiny(body) is NATIVE
