"""Options of backends: of a backend that a plugin defines, as good as those of any other."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import narrowpass
from narrowpass.errors import PipelineError, PluginError, UsageError
from narrowpass.framework.options import OptionError
from narrowpass.framework.plugins import load_plugins
from narrowpass_reference import ReferenceBackend


class Layout(enum.Enum):
    """Memory format."""

    NCHW = "nchw"
    NHWC = "nhwc"


@dataclass(frozen=True)
class Systolic(ReferenceBackend):
    """A backend of a third party.

    Attributes:
        cores: how many compute.
        layout: of images.
        skip: operators that it leaves out.
        trace: the file of a trace.
    """

    name = "systolic"
    priority = -1

    cores: int = 4
    layout: Layout = Layout.NCHW
    skip: tuple[str, ...] = ()
    trace: str | None = None
    exact_rounding: bool = True

    def compile(self, bundle, options):
        program = super().compile(bundle, options)
        program.cores = self.cores
        return program


class Plain(ReferenceBackend):
    """A backend without options."""

    name = "plain"
    priority = -2


@pytest.fixture
def plugins_of(entry_point):
    """Load what one plugin registers."""
    return lambda **hooks: load_plugins(entry_points=[entry_point("fake", **hooks)])


@pytest.fixture
def registry(plugins_of):
    return plugins_of(narrowpass_backends=[Systolic(), Plain()]).registry


TEXTS = [
    ("systolic", Systolic()),
    ("systolic{cores=8}", Systolic(cores=8)),
    ("systolic{cores=2,layout=nhwc}", Systolic(cores=2, layout=Layout.NHWC)),
    ("systolic{skip=[Conv,Gemm],trace=a.json}", Systolic(skip=("Conv", "Gemm"), trace="a.json")),
    ('systolic{trace="a b{}.json"}', Systolic(trace="a b{}.json")),
    ("systolic{exact-rounding=false}", Systolic(exact_rounding=False)),
]


@pytest.mark.parametrize(("text", "backend"), TEXTS)
def test_text_and_back(registry, text, backend):
    assert registry.backend(text) == backend
    assert str(backend) == text
    assert registry.backend(backend) is backend


def test_space_and_defaults(registry):
    assert str(registry.backend(" systolic { cores = 4 , layout = nhwc } ")) == (
        "systolic{layout=nhwc}"
    )


def test_without_options_it_is_the_one_that_is_registered(registry):
    assert registry.backend("systolic") is registry.backends["systolic"]
    assert registry.backend("systolic{}") is registry.backends["systolic"]


LISTING = "cores, layout, skip, trace, exact-rounding"


@pytest.mark.parametrize(
    ("text", "message", "caret"),
    [
        (
            "systolic{core=1}",
            f"no option 'core' (did you mean 'cores'?); its options: {LISTING}",
            9,
        ),
        ("systolic{cores=1,layout=nc}", "'layout' of 'systolic' takes nchw|nhwc, not 'nc'", 17),
        ("systolic{cores=many}", "option 'cores' of 'systolic' takes integer, not 'many'", 9),
        ("systolic{cores=1,cores=2}", "option 'cores' is given twice", 17),
        ("systolic{cores}", "'=' is expected after option 'cores'", 14),
        ("systolic{cores=1", "',' is expected between options, or '}' after the last", 16),
        ("systolic,plain", "one backend is expected, not 2", 9),
        ("", "the name of a backend is expected here", 0),
        ("{cores=1}", "the name of a backend is expected here", 0),
        ("plain{cores=1}", "'plain' has no option 'cores'; its options: none", 6),
    ],
)
def test_a_caret_stands_under_what_is_wrong(registry, text, message, caret):
    with pytest.raises(PipelineError) as caught:
        registry.backend(text)
    first, *shown = str(caught.value).splitlines()
    assert message in first
    assert shown == [f"  {text}", f"  {' ' * caret}^"]


def test_a_backend_that_is_not_installed(registry):
    with pytest.raises(PluginError, match=r"no backend 'systolik' is installed \(did you mean"):
        registry.backend("systolik")
    with pytest.raises(PluginError, match=r"installed: .*\n  systolik\{cores=1\}\n  \^$"):
        registry.backend("systolik{cores=1}")


@pytest.mark.parametrize("given", [3, b"systolic", Systolic, ["systolic"]])
def test_what_names_no_backend(registry, given):
    with pytest.raises(UsageError, match="a backend is given by its name"):
        registry.backend(given)


@pytest.mark.parametrize(
    "options", [{"cores": "4"}, {"cores": True}, {"layout": "nc"}, {"exact_rounding": 1}]
)
def test_options_from_python_are_checked_too(options):
    with pytest.raises(OptionError, match="of 'systolic' takes"):
        Systolic(**options)


def test_options_reach_the_program(plugins_of):
    plugins = plugins_of(narrowpass_backends=[Systolic()])
    with narrowpass.load(_model(), "systolic{cores=9}", plugins=plugins) as program:
        assert program.cores == 9
    with narrowpass.load(_model(), Systolic(cores=3), plugins=plugins) as program:
        assert program.cores == 3


def test_passes_see_the_options_of_the_target(plugins_of):
    seen = []

    @dataclass(frozen=True)
    class Look(narrowpass.Pass):
        name = "look"

        def run(self, model, ctx):
            seen.append(ctx.target)
            return narrowpass.PassResult(model, False)

    plugins = plugins_of(narrowpass_backends=[Systolic()], narrowpass_passes=[Look])
    narrowpass.build(_model(), "look", target="systolic{cores=2}", plugins=plugins)
    assert seen == [Systolic(cores=2)]


@dataclass(frozen=True)
class Needy(ReferenceBackend):
    """Has an option without a default."""

    name = "needy"

    cores: int


class Undecorated(ReferenceBackend):
    """Its option is none: the decorator is missing."""

    name = "undecorated"

    cores: int = 4


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (Systolic(cores=2), r"registered as 'systolic\{cores=2\}': register it with its default"),
        (Needy(1), r"registered as 'needy\{cores=1\}': register it with its default"),
        (Undecorated(), "has the option 'cores' and no decorator"),
    ],
)
def test_what_cannot_be_registered(plugins_of, backend, message):
    registry = plugins_of(narrowpass_backends=[backend]).registry
    assert not registry.backends
    (info,) = registry.failed.values()
    assert re.search(message, info.error)


def _model() -> ir.Model:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "relu")], "g", [x], [y])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
