from __future__ import annotations

import enum
import json
import logging
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowpass import Context, Instrument, Observer, Pass, PassResult, Pipeline, load_plugins
from narrowpass.errors import InputError, NarrowpassError, PassError, PipelineError, UsageError
from narrowpass.framework.options import describe_type, option_types
from narrowpass.framework.pipeline import parse_instrument

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x) => (float[N, 4] y) { t = Relu(x)  y = Neg(t) }
"""


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Percent:
    def __init__(self, value):
        self.value = value

    @classmethod
    def parse(cls, text):
        if not text.endswith("%"):
            raise ValueError("write a per cent sign")
        return cls(float(text[:-1]))

    def __str__(self):
        return f"{self.value}%"

    def __eq__(self, other):
        return isinstance(other, Percent) and self.value == other.value

    __hash__ = None


@dataclass(frozen=True)
class Options(Pass):
    """One option of every type."""

    name = "options"
    flag: bool = False
    count: int = 1
    ratio: float = 0.5
    text: str = "t"
    mode: Mode = Mode.FAST
    level: Literal["low", "high"] = "low"
    items: tuple[str, ...] = ()
    keep_io: bool | tuple[str, ...] = True
    limit: int | None = None
    share: Percent | None = None

    def run(self, model, ctx):
        return PassResult(model, modified=False)


@pytest.fixture
def registry(registry_of, touch):
    return registry_of(Options, touch, narrowpass_pipelines={"twice": "touch,touch{label=b}"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "options",
        "options,options",
        "twice",
        "touch,twice,options{flag=true}",
        "options{flag=true,count=-3,ratio=1e-05,mode=slow,level=high}",
        "options{items=[op:Softmax,/head/*]}",
        "options{keep-io=[a,b]}",
        "options{keep-io=false}",
        "options{keep-io=[]}",
        'options{text="",items=["a b","c,d","[e]","{f}","g=h","\\"i\\"","\\u2028"]}',
        "options{limit=7,share=12.5%}",
        'options{text="/Ünïcode/名前/x:0"}'.replace('"', ""),
    ],
)
def test_text_prints_back_to_itself(registry, text):
    pipeline = Pipeline.parse(text, registry)
    again = Pipeline.parse(str(pipeline), registry)
    assert again == pipeline
    assert str(again) == str(pipeline)
    if "\\u2028" not in text:
        assert str(pipeline) == text


def test_white_space_and_defaults_are_normalised(registry):
    pipeline = Pipeline.parse(" options { flag = true , count = 1 } ,\n touch ", registry)
    assert str(pipeline) == "options{flag=true},touch"


@given(
    items=st.lists(st.text()).map(tuple),
    text=st.text(),
    count=st.integers(),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_option_value_survives_the_text(items, text, count, ratio):
    registry = load_plugins(entry_points=[]).registry
    registry = type(registry)(passes={"options": Options})
    pipeline = Pipeline((Options(items=items, text=text, count=count, ratio=ratio),))
    assert Pipeline.parse(str(pipeline), registry) == pipeline


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("nothing", 0, "no pass 'nothing' is installed"),
        ("optoins", 0, "did you mean 'options'?"),
        ("touch,,touch", 6, "the name of a pass is expected"),
        ("touch touch", 6, "',' is expected between passes"),
        ("touch,", 6, "the name of a pass is expected"),
        ("options{", 8, "an option of 'options' is expected"),
        ("options{flag", 12, "'=' is expected after option 'flag'"),
        ("options{flag=", 13, "a value is expected"),
        ("options{flag=true", 17, "',' is expected between options"),
        ("options{flag=true,}", 18, "an option of 'options' is expected"),
        ("options{items=[a", 16, "',' is expected between list items"),
        ("options{items=[a,]}", 17, "a value is expected"),
        ('options{text="a}', 13, "never closed"),
        ('options{text="\\x"}', 14, "not a JSON string"),
        ("options{flag=true,flag=false}", 18, "'flag' is given twice"),
        ("options{flga=true}", 8, "did you mean 'flag'?"),
        ("options{count=1,flag=yes}", 16, "'flag' of 'options' takes true|false, not 'yes'"),
        ("options{count=1.5}", 8, "takes integer, not '1.5'"),
        ("options{ratio=nan}", 8, "takes number, not 'nan'"),
        ("options{ratio=inf}", 8, "takes number, not 'inf'"),
        ("options{mode=medium}", 8, "takes fast|slow, not 'medium'"),
        ("options{level=medium}", 8, "takes low|high"),
        ("options{items=a}", 8, r"takes [text, ...], not 'a'"),
        ("options{text=[a]}", 8, "takes text, not '[a]'"),
        ("options{keep-io=maybe}", 8, "takes true|false|[text, ...], not 'maybe'"),
        ("options{keep_io=false}", 8, "did you mean 'keep-io'?"),
        ("options{share=12}", 8, "takes percent|none, not '12'"),
        ("touch,twice{a=b}", 6, "'twice' has no options"),
        ("}", 0, "the name of a pass is expected"),
    ],
)
def test_errors_show_the_place_with_a_caret(registry, text, column, message):
    with pytest.raises(PipelineError) as caught:
        Pipeline.parse(text, registry)
    first, line, caret = str(caught.value).split("\n")
    assert message in first
    assert line == f"  {text}"
    assert caret == f"  {' ' * column}^"


def test_a_named_pipeline_that_contains_itself_is_an_error(registry_of):
    registry = registry_of(narrowpass_pipelines={"a": "b", "b": "a"})
    with pytest.raises(PipelineError, match="'a' contains itself"):
        Pipeline.parse("a", registry)


def test_describe_type_names_options_as_a_user_writes_them():
    shown = {name: describe_type(hint) for name, hint in option_types(Options).items()}
    assert shown["keep-io"] == "true|false|[text, ...]"
    assert shown["mode"] == "fast|slow"
    assert shown["limit"] == "integer|none"


@dataclass(frozen=True)
class First(Options):
    name = "first"


@dataclass(frozen=True)
class Second(Options):
    name = "second"
    requires = ("first",)
    forbids = ("third",)


@dataclass(frozen=True)
class Third(Options):
    name = "third"


def test_requirements_between_passes_reject_and_never_reorder(registry_of):
    registry = registry_of(First, Second, Third, narrowpass_pipelines={"start": "first"})
    for text in ("first,second", "start,second", "first,second,third"):
        assert str(Pipeline.parse(text, registry)) == text
    with pytest.raises(PipelineError, match="'second' requires 'first' to stand before it"):
        Pipeline.parse("second,first", registry)
    with pytest.raises(PipelineError, match="'second' must not stand after 'third'"):
        Pipeline.parse("first,third,second", registry)


def test_run_leaves_the_callers_model_alone(registry):
    model = ir.from_onnx_text(MODEL)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    result = Pipeline.parse("twice", registry).run(model, Context())
    assert result.modified
    assert result.model.graph.doc_string == "touched;b;"
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_run_in_place_changes_the_model_that_it_is_given(registry):
    model = ir.from_onnx_text(MODEL)
    assert Pipeline.parse("touch", registry).run(model, Context(), in_place=True).model is model


def pass_that(body, modified=True, **attributes):
    """A pass that calls `body` on the model."""

    @dataclass(frozen=True)
    class That(Pass):
        name = "that"

        def run(self, model, ctx):
            result = body(model)
            return PassResult(model, modified) if result is None else result

    for key, value in attributes.items():
        setattr(That, key, value)
    return That()


def run(pass_, **options):
    return Pipeline((pass_,)).run(ir.from_onnx_text(MODEL), Context(), **options)


def rename_output(model):
    model.graph.outputs[0].name = "z"


def orphan(model):
    node = model.graph.node(0)
    model.graph.remove(node)


def fail(model):
    raise KeyError("weights")


def test_a_pass_that_breaks_the_model_is_named(registry):
    with pytest.raises(PassError, match="pass 'that' failed: VerificationError"):
        run(pass_that(orphan))
    assert run(pass_that(orphan), verify=False).modified


def test_a_pass_that_changes_the_signature_must_be_allowed_to():
    with pytest.raises(PassError, match="changed the model's signature"):
        run(pass_that(rename_output))
    assert run(pass_that(rename_output, may_change_signature=True)).modified


def test_a_pass_that_lies_is_found_in_strict_mode():
    def touch(model):
        model.graph.doc_string = "changed"

    assert not run(pass_that(touch, modified=False)).modified
    with pytest.raises(PassError, match="changed the model and said that it did not"):
        run(pass_that(touch, modified=False), strict=True)


def test_a_pass_that_returns_something_else_is_named():
    with pytest.raises(PassError, match="pass 'that': it gave 3 and not a PassResult"):
        run(pass_that(lambda model: 3))


def test_an_unexpected_error_names_pass_and_type_and_what_to_do():
    with pytest.raises(PassError, match=r"'that' failed: KeyError: 'weights'.*--reproducer DIR"):
        run(pass_that(fail))


@pytest.mark.parametrize("kind", [InputError, UsageError, PassError])
def test_errors_on_purpose_keep_their_kind(kind):
    def refuse(model):
        raise kind("node 'n' is too wide")

    with pytest.raises(kind, match="pass 'that': node 'n' is too wide") as caught:
        run(pass_that(refuse))
    assert caught.value.exit_code == kind.exit_code
    assert isinstance(caught.value, NarrowpassError)


@dataclass
class Log(Instrument):
    name = "log"

    def __post_init__(self):
        self.calls = []

    def before_pass(self, pass_, model, ctx):
        self.calls.append(("before", str(pass_)))

    def after_pass(self, pass_, result, ctx, seconds):
        self.calls.append(("after", str(pass_), dict(ctx.counters)))

    def failed(self, pass_, error):
        self.calls.append(("failed", str(pass_), type(error).__name__))

    def finish(self):
        self.calls.append(("finish",))


def test_instruments_see_each_pass_with_its_own_counters(registry):
    log = Log()
    Pipeline.parse("twice", registry).run(ir.from_onnx_text(MODEL), Context(), instruments=[log])
    assert log.calls == [
        ("before", "touch"),
        ("after", "touch", {"touched": 1}),
        ("before", "touch{label=b}"),
        ("after", "touch{label=b}", {"touched": 1}),
        ("finish",),
    ]


def test_instruments_see_a_failure(caplog):
    log = Log()
    with pytest.raises(PassError), caplog.at_level(logging.ERROR):
        run(pass_that(fail), instruments=[log])
    assert log.calls[-1] == ("failed", "that", "KeyError")


def test_timing_and_statistics_print_a_line_for_each_pass(registry, capsys):
    chosen = [parse_instrument(text, registry) for text in ("timing", "statistics")]
    Pipeline.parse("twice", registry).run(ir.from_onnx_text(MODEL), Context(), instruments=chosen)
    text = capsys.readouterr().err
    assert "touch: nodes 2 -> 2, weights 0 -> 0 bytes; touched 1" in text
    assert text.count("      verify") == 2


def test_dump_writes_models_that_onnx_opens(registry, tmp_path):
    import onnx

    dump = parse_instrument(f"dump{{dir={tmp_path / 'd'}}}", registry)
    Pipeline.parse("touch,options,touch", registry).run(
        ir.from_onnx_text(MODEL), Context(), instruments=[dump]
    )
    files = sorted(path.name for path in (tmp_path / "d").iterdir())
    assert files == ["00-input.onnx", "01-touch.onnx", "03-touch.onnx"]
    for name in files:
        onnx.checker.check_model(tmp_path / "d" / name, full_check=True)
    assert onnx.load(tmp_path / "d" / "03-touch.onnx").graph.doc_string == "touched;touched;"


def test_print_after_change_prints_the_models_text(registry, capsys):
    printer = parse_instrument("print-after-change", registry)
    Pipeline.parse("touch,options", registry).run(
        ir.from_onnx_text(MODEL), Context(), instruments=[printer]
    )
    text = capsys.readouterr().err
    assert "// after touch\n" in text
    assert "Relu" in text
    assert "// options changed nothing" in text


def test_reproducer_keeps_the_input_of_the_pass_that_failed(registry, tmp_path):
    import onnx

    from narrowpass.framework.instruments.reproducer import Reproduction

    def change_then_fail(model):
        orphan(model)
        raise KeyError("weights")

    reproducer = parse_instrument(f"reproducer{{dir={tmp_path}}}", registry)
    with pytest.raises(PassError):
        run(pass_that(change_then_fail), instruments=[reproducer])
    read = Reproduction.read(tmp_path)
    assert (read.pipeline, read.error) == ("that", "KeyError: 'weights'")
    assert len(onnx.load(read.model).graph.node) == 2
    assert json.loads((tmp_path / "reproducer.json").read_text())["versions"]["onnx"]


def test_an_unknown_instrument_is_an_error_with_a_caret(registry):
    with pytest.raises(PipelineError, match="did you mean 'timing'"):
        parse_instrument("timin", registry)
    with pytest.raises(PipelineError, match="one instrument is expected"):
        parse_instrument("timing,dump", registry)


def test_instruments_and_callers_hear_of_progress(registry_of):
    @dataclass(frozen=True)
    class Work(Pass):
        name = "work"

        def run(self, model, ctx):
            for done in range(3):
                ctx.observer.progress("working", done + 1, 3)
            return PassResult(model, modified=False)

    @dataclass
    class Ear(Instrument):
        name = "ear"

        def __post_init__(self):
            self.heard = []

        def progress(self, pass_, what, done, total):
            self.heard.append((str(pass_), what, done, total))

    reported, ear = [], Ear()
    context = Context(observer=Observer(progress=lambda *all_: reported.append(all_)))
    model = ir.from_onnx_text(MODEL)
    Pipeline.parse("work,work", registry_of(Work)).run(model, context, instruments=[ear])
    once = [("working", done, 3) for done in (1, 2, 3)]
    assert reported == [*once, *once]
    assert ear.heard == [("work", *each) for each in [*once, *once]]


def test_nobody_need_listen_to_progress():
    assert Context().observer.progress("working", 1, 2) is None
