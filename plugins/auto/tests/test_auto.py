"""The pass on models, with candidates of this folder and those that are installed."""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from auto_kit import Coarse, dense, rows

import narrowpass
from narrowpass import Context, load_plugins
from narrowpass.calibration.samples import Samples
from narrowpass.errors import PassError, UsageError
from narrowpass_auto.auto import Auto
from narrowpass_auto.graph.units import name_nodes
from narrowpass_auto.limits import Limit

CANDIDATES = {one.name: one for one in (Coarse("bits8", 8), Coarse("bits3", 3))}


_PLUGINS = {
    **dict.fromkeys(("bf16", "fp16"), "narrowpass-fp16"),
    **dict.fromkeys(("int8", "int8-dynamic", "int8-weights"), "narrowpass-int8-sym"),
    **dict.fromkeys(("int4", "int4-dynamic"), "narrowpass-int4"),
}
"""The distribution of each installed candidate."""


def _context(samples=None, candidates=CANDIDATES, target="reference"):
    registry = load_plugins().registry
    return Context(
        registry.backend(target),
        registry.classifiers,
        None if samples is None else Samples.of(samples),
        candidates=candidates,
    )


def _error(model, other, samples):
    """Return the relative error on samples, computed by onnx's evaluator alone."""
    worst = 0.0
    for feeds in samples:
        right, got = (
            onnx.reference.ReferenceEvaluator(ir.to_proto(one)).run(None, feeds)[0]
            for one in (model, other)
        )
        worst = max(worst, float(np.abs(got - right).max() / np.abs(right).max()))
    return worst


@pytest.mark.parametrize("bound", [1.0, 0.03, 0.015])
def test_limit_holds_on_samples_that_it_never_saw(bound):
    """Bytes are minimized, where times do not count: the oracle's are not those of a target."""
    model, samples = dense(), rows(12)
    ctx = _context(samples)
    result = Auto(max_error=Limit("rel", bound), objective="bytes").run(model.clone(), ctx)
    assert result.modified
    assert _error(model, result.model, rows(12, seed=9)) <= bound
    chosen = {decision.node: decision.decision for decision in ctx.decisions}
    assert set(chosen) == {"mm0", "mm1", "mm2", "mm3"}
    if bound == 1.0:
        assert "bits3" in chosen.values()
    assert ctx.counters["evaluations"] <= 18
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)


def test_tighter_limits_keep_more_bits():
    kept = []
    for bound in (1.0, 0.2, 0.03):
        ctx = _context(rows(8))
        Auto(max_error=Limit("rel", bound), objective="bytes").run(dense(6), ctx)
        kept.append(sum(d.decision == "bits3" for d in ctx.decisions))
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[-1]


def test_limit_that_nothing_meets(caplog):
    model = dense()
    result = Auto(max_error=Limit("rel", 1e-12)).run(model, _context(rows()))
    assert not result.modified
    assert result.model is model
    assert "nearest" in result.summary
    assert "stays as it is" in caplog.text


def test_same_data_same_model():
    texts = set()
    for _ in range(2):
        ctx = _context(rows())
        auto = Auto(max_error=Limit("rel", 0.05), objective="bytes")
        texts.add(ir.to_proto(auto.run(dense(), ctx).model).SerializeToString(deterministic=True))
    assert len(texts) == 1


def test_red_and_allow():
    ctx = _context(rows())
    auto = Auto(Limit("rel", 1.0), "bytes", allow=("bits8", "fp32"), red=("mm0", "op:Relu", "no*"))
    auto.run(dense(), ctx)
    assert {d.node: d.decision for d in ctx.decisions} == dict.fromkeys(
        ("mm1", "mm2", "mm3"), "bits8"
    )


def test_unknown_candidate():
    with pytest.raises(PassError, match=r"no candidate 'bit8'.*did you mean 'bits8'"):
        Auto(allow=("bit8",)).run(dense(), _context(rows()))


def test_nothing_is_installed():
    with pytest.raises(PassError, match="install narrowpass-fp16"):
        Auto().run(dense(), _context(rows(), candidates={}))


def test_candidate_that_fails():
    class Broken(Coarse):
        def rewrite(self, model, nodes, ctx):
            raise RuntimeError("oops")

    class Invalid(Coarse):
        def rewrite(self, model, nodes, ctx):
            model.graph[0].replace_input_with(0, model.graph[-1].outputs[0])
            return model

    for candidate in (Broken("broken", 8), Invalid("invalid", 8)):
        ctx = _context(rows(), {"bits8": CANDIDATES["bits8"], candidate.name: candidate})
        result = Auto(Limit("rel", 1.0), "bytes").run(dense(), ctx)
        assert result.modified
        assert {d.decision for d in ctx.decisions} == {"bits8"}
        assert all(candidate.name in d.reason for d in ctx.decisions)


def test_without_data_random_inputs_judge(caplog):
    ctx = _context()
    auto = Auto(Limit("rel", 0.05), "bytes", sizes=("batch=3",))
    assert auto.run(dense(), ctx).modified
    assert "no calibration data" in caplog.text
    assert "batch" not in caplog.text
    caplog.clear()
    Auto(Limit("rel", 0.05), "bytes").run(dense(), _context())
    assert "dimension 'batch' is taken as 1" in caplog.text


def test_candidates_that_need_data_are_left_out():
    class Needs(Coarse):
        needs_data = True

    caught = _context(None, {"needs": Needs("needs", 8), "bits8": CANDIDATES["bits8"]})
    Auto(Limit("rel", 1.0), "bytes").run(dense(), caught)
    assert {d.decision for d in caught.decisions} == {"bits8"}


@pytest.mark.parametrize(
    "options", [{"evaluations": 1}, {"sizes": ("batch",)}, {"sizes": ("batch=0",)}]
)
def test_options_that_are_wrong(options):
    with pytest.raises(UsageError):
        Auto(**options)


def test_one_sample_is_said_to_be_alone():
    result = Auto(Limit("rel", 1.0), "bytes").run(dense(), _context(rows(1)))
    assert "on the sample that it was chosen by" in result.summary


def test_model_without_weights():
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[1, 8] x) => (float[1, 8] y) '
        "{ y = Relu(x) }"
    )
    result = Auto().run(model, _context([{"x": np.ones((1, 8), np.float32)}]))
    assert (result.modified, result.model) == (False, model)


def test_memory_of_samples_is_that_of_one():
    """Samples are read anew for each round, and held one at a time."""
    alive, most = 0, 0

    class Counted(dict):
        def __init__(self, *given):
            nonlocal alive, most
            super().__init__(*given)
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    def samples():
        for feeds in rows(40):
            yield Counted(feeds)

    Auto(Limit("rel", 0.05), "bytes").run(dense(), _context(samples))
    assert most <= 8  # 4 that units are run on, and one at a time for each iterator


def test_own_kernels_are_timed_and_kept(caplog):
    """With a backend whose times count: a second build measures nothing, and is the same."""
    pytest.importorskip("narrowpass_xnn_cpu")
    caplog.set_level(logging.WARNING)
    model, samples = dense(4, 256), rows(4, 256)
    built = []
    for _ in range(2):
        ctx = _context(samples, load_plugins().registry.candidates, "xnn-cpu")
        built.append(Auto(Limit("rel", 0.05)).run(model.clone(), ctx))
        assert len(ctx.exhibits) >= 3
    assert built[0].summary == built[1].summary
    texts = [ir.to_proto(one.model).SerializeToString(deterministic=True) for one in built]
    assert texts[0] == texts[1]


def test_names_are_given_to_nodes_without():
    model = dense()
    for node in model.graph:
        node.name = None
    ctx = _context(rows())
    result = Auto(Limit("rel", 1.0), "bytes").run(model, ctx)
    assert result.modified
    assert all(node.name for node in result.model.graph)
    assert all(node.name is None for node in model.graph)
    assert name_nodes(result.model) == 0


@pytest.mark.usefixtures("steady_times")
def test_whole_build(tmp_path):
    pytest.importorskip("narrowpass_xnn_cpu")
    pytest.importorskip("narrowpass_int8_sym")
    model, samples = dense(6, 128), rows(16, 128, 32)
    pipeline = "auto{max-error=cosine:0.999,objective=bytes}"
    bundle = narrowpass.build(model, pipeline, tmp_path / "m.narrow", calibration=samples)
    part = bundle.reports[-1].methods["main"]
    assert part.counters["evaluations"] <= 18
    chosen = {decision["decision"] for decision in part.decisions} - {"fp32"}
    assert chosen
    assert set(bundle.plugins) == {"narrowpass-auto", *(_PLUGINS[name] for name in chosen)}
    titles = [exhibit["title"] for exhibit in part.exhibits]
    assert any("Pareto" in title or "error of the runs" in title for title in titles)
    again = narrowpass.Bundle.load(tmp_path / "m.narrow")
    assert again.reports[-1].methods["main"].exhibits == part.exhibits
    with narrowpass.load(model, pipeline="") as right, narrowpass.load(again) as program:
        for feeds in rows(8, 128, 32, seed=5):
            a, b = (one.run(feeds)["h5"].ravel().astype(np.float64) for one in (right, program))
            assert a @ b / np.sqrt((a @ a) * (b @ b)) >= 0.999


def test_few_rows_cannot_prove_that_classes_agree(caplog):
    """0.05 to the power of 1/12 is 0.779: what 12 rows of 12 prove; 0.95 takes 59 rows."""
    for bound, warns in ((0.05, True), (0.3, False)):
        caplog.clear()
        auto = Auto(max_error=Limit("top1", 1.0 - bound), objective="bytes")
        result = auto.run(dense(2), _context(rows(6)))
        assert result.modified
        said = [item.message for item in caplog.records if "proves an agreement" in item.message]
        assert len(said) == warns
        assert all(
            "12 of 12 rows" in text and "0.779" in text and "59 rows" in text for text in said
        )


def test_no_row_may_move():
    """A limit of no row at all can be met: of others, a thousandth is as good as none."""
    model, rng = dense(1), np.random.default_rng(0)
    weights = (10.0 * np.eye(16) + 0.1 * rng.standard_normal((16, 16))).astype(np.float32)
    model.graph.initializers["w0"].const_value = ir.Tensor(weights, name="w0")
    samples = [{"x": np.eye(16, dtype=np.float32)[at : at + 2]} for at in range(8)]
    auto = Auto(max_error=Limit("top1", 1.0), objective="bytes", allow=("bits8",))
    assert auto.run(model, _context(samples)).modified
