"""The two calls that most programs need: `build` a bundle, `load` a program."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import onnx_ir as ir

from narrowpass.bundle import Bundle, MethodReport, Report, check_method_names, is_bundle
from narrowpass.calibration.samples import Samples, SamplesLike
from narrowpass.errors import ModelError, UsageError
from narrowpass.framework.config import registry_for
from narrowpass.framework.context import Context
from narrowpass.framework.importing import import_models, importer_of, installed_importers
from narrowpass.framework.instruments import Instrument
from narrowpass.framework.pipeline import Pipeline, PipelineLike
from narrowpass.framework.plugins import Plugins, Registry, installed_plugins
from narrowpass.runtime.backend import CompileOptions, Program, compile_bundle, verify_structure
from narrowpass_ir.arguments import flag_of, instance_of, kind_of, names_of, path_of
from narrowpass_ir.files import check_not_source
from narrowpass_ir.importing import Imported
from narrowpass_ir.io import save_model
from narrowpass_ir.sizes import memory_bytes
from narrowpass_ir.sources import ModelLike, open_model
from narrowpass_ir.state import State
from narrowpass_ir.tensors.safetensors import Progress

if TYPE_CHECKING:
    from narrowpass.framework.passes import Pass, PassResult
    from narrowpass.runtime.backend import Backend, BackendLike


@dataclass
class _Recorder(Instrument):
    """Keeps what each pass decided about one method, for the bundle's reports."""

    name: ClassVar[str] = "recorder"

    passes: list[Pass] = field(default_factory=list)
    parts: list[MethodReport] = field(default_factory=list)

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        self.passes.append(pass_)
        decisions = [decision.to_json() for decision in ctx.decisions]
        counters = dict(sorted(ctx.counters.items()))
        self.parts.append(MethodReport(decisions, counters, tuple(ctx.exhibits)))


def build(
    models: Mapping[str, ModelLike] | ModelLike | Imported,
    pipeline: PipelineLike | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    target: BackendLike | None = None,
    calibration: SamplesLike | None = None,
    example_inputs: Sequence[Any] | None = None,
    instruments: Sequence[Instrument] = (),
    verify: bool = True,
    plugins: Plugins | None = None,
    progress: Progress | None = None,
    states: Sequence[str | State] | None = None,
) -> Bundle:
    """Run a pipeline on models and build a bundle of them.

    Args:
        models: an ONNX file, its bytes or a model (of onnx-ir, onnx or PyTorch) for each method, by
            the method's name; one alone is method ``main``. Models given as objects are not
            changed. A path of another format is read by the importer that is installed for it,
            which names the methods; what an importer returned may be given, too.
        pipeline: pipeline text, a pass, or a list of both; None for the target's default.
        out: where the result goes: a name that ends in ``.onnx`` for one ordinary ONNX file (one
            method only), anything else for a bundle folder; None to write nothing. It must not
            be one of the files that are read.
        target: the backend that the bundle is for, with its options; None for the default one. A
            `Backend` need not be available on this machine.
        calibration: samples for passes that need data: an iterable of feeds, a function that
            returns one, or what `Samples.parse` reads.
        example_inputs: of a ``torch.nn.Module``: a tuple of tensors, whose sizes it is built for.
        instruments: called for each pass.
        verify: whether the model's structure is checked after each pass that changed it.
        plugins: the plugins to use; None for the installed ones.
        progress: called while weights are written.
        states: what sessions keep between runs: `State`, or its text ``INPUT=OUTPUT@AXIS``; None
            to find KV caches and hidden states in the models.

    Returns:
        The bundle. After writing to a folder it is the one in memory, not read back.

    Raises:
        UsageError: an unknown pass, option or backend; an output that must not be replaced.
        InputError: a model or data that cannot be used, or a result that cannot be written.
    """
    registry = registry_for(_plugins(plugins))
    backend = registry.backend(target, must_run=target is None or isinstance(target, str))
    out = None if out is None else path_of(out, "`out`")
    verify = flag_of(verify, "`verify`")
    watching = _instruments(instruments)
    if progress is not None and not callable(progress):
        raise UsageError(f"`progress` must be a function, not {kind_of(progress)}")
    chosen = choose_pipeline(pipeline, backend, registry)
    if out is not None and not isinstance(models, Imported):
        check_not_source(out, models.values() if isinstance(models, Mapping) else [models])
    imported = import_models(models, registry)
    named: Mapping[str, ModelLike] = imported.methods
    check_method_names(named)
    plain = out is not None and Path(out).suffix == ".onnx"
    if plain and len(named) != 1:
        raise UsageError(
            f"{out} can hold one method, not {len(named)} ({', '.join(named)}); "
            "name a folder such as model.narrow for a bundle"
        )
    samples = Samples.of(calibration)
    methods: dict[str, ir.Model] = {}
    recorders: dict[str, _Recorder] = {}
    used: set[str] = set()
    for name, source in named.items():
        recorders[name] = _Recorder()
        ctx = Context(
            backend,
            registry.classifiers,
            samples,
            candidates=registry.candidates,
            used=used,
        )
        methods[name] = chosen.run(
            _open(source, registry, example_inputs),
            ctx,
            instruments=[recorders[name], *watching],
            verify=verify,
            in_place=not isinstance(source, ir.Model),
        ).model
    bundle = Bundle(
        methods,
        pipeline=str(chosen),
        plugins=_versions(chosen, used, registry),
        reports=_reports(recorders),
        states=None if states is None else [State.of(item) for item in states],
        assets=imported.assets,
    )
    if plain and out is not None:
        save_model(next(iter(methods.values())), out)
    elif out is not None:
        bundle.save(out, progress=progress)
    return bundle


def _open(source: ModelLike, registry: Registry, example_inputs: Sequence[Any] | None) -> ir.Model:
    if isinstance(source, ir.Model):
        verify_structure(source, "the model that is built")
    try:
        return open_model(source, example_inputs)
    except ModelError as error:
        if not isinstance(source, str | os.PathLike) or Path(source).suffix == ".onnx":
            raise
        raise ModelError(f"{error}; {installed_importers(registry)}") from error


def choose_pipeline(
    pipeline: PipelineLike | None, backend: Backend, registry: Registry
) -> Pipeline:
    """Return the pipeline that the caller means; None means the backend's default."""
    if pipeline is None:
        pipeline = backend.default_pipeline({*registry.passes, *registry.pipelines})
    return Pipeline.of(pipeline, registry)


def load(
    source: ModelLike | Bundle,
    backend: BackendLike | None = None,
    *,
    threads: int | None = None,
    keep: Sequence[str] = (),
    require_native: bool = False,
    cache: bool | Literal["memory"] = True,
    cache_dir: str | os.PathLike[str] | None = None,
    pipeline: PipelineLike | None = None,
    example_inputs: Sequence[Any] | None = None,
    plugins: Plugins | None = None,
) -> Program:
    """Compile a bundle, or an ONNX model, for a backend.

    Args:
        source: a bundle (a folder or an object), or an ONNX file, its bytes or a model (of onnx-ir,
            onnx or PyTorch), which is first built in memory.
        backend: the backend's name, with options where they are not the defaults, such as
            ``name{option=value}``; or a `Backend`; None for the available one of highest
            priority.
        threads: threads that a run may use; None for all processors that it may use.
        keep: inner values that must stay readable through ``run(outputs=...)``.
        require_native: whether a node without a native kernel is an error.
        cache: whether packed weights are shared and kept on disk; see `CompileOptions.cache`.
        cache_dir: where they are kept; None for the user's cache directory.
        pipeline: for a model: as in `build`; None for the backend's default.
        example_inputs: as in `build`.
        plugins: the plugins to use; None for the installed ones.

    Raises:
        UsageError: an unknown backend or path; a pipeline given for a bundle.
        InputError: a bundle or model that cannot be used.
        BackendError: a model that the backend cannot run, or not natively where it must.
    """
    plugins = _plugins(plugins)
    chosen = registry_for(plugins).backend(backend)
    options = CompileOptions(
        threads=threads,
        keep=tuple(names_of(keep, "`keep`")),
        require_native=require_native,
        cache=cache,
        cache_dir=cache_dir,
    )
    bundle = open_bundle(
        source,
        chosen,
        pipeline=pipeline,
        example_inputs=example_inputs,
        plugins=plugins,
        unread=True,
    )
    program = compile_bundle(chosen, bundle, options)
    held = 0 if bundle.manifest is not None else sum(map(memory_bytes, bundle.methods.values()))
    if bundle is not source and held > _WORTH_COLLECTING:
        # Graphs refer to themselves in circles: without this, weights that the program does not
        # need would stay in memory until the collector comes by.
        del bundle
        gc.collect()
    return program


_WORTH_COLLECTING = 64 << 20
"""Bytes of weights in memory from which it is worth some tens of milliseconds to free them."""


def open_bundle(
    source: ModelLike | Bundle,
    target: BackendLike | None = None,
    *,
    pipeline: PipelineLike | None = None,
    example_inputs: Sequence[Any] | None = None,
    plugins: Plugins | None = None,
    unread: bool = False,
) -> Bundle:
    """Return a bundle from a folder, or built in memory from an ONNX file or model.

    With `unread`, a folder is opened by `Bundle.load_unread`.

    Raises:
        UsageError: a pipeline is given for what is a bundle already; nothing is at the path.
    """
    named = isinstance(source, str | os.PathLike)
    path = path_of(source, "the path of the model or bundle") if named else None
    built = isinstance(source, Bundle) or (path is not None and is_bundle(path))
    if built and pipeline is not None:
        raise UsageError("a pipeline applies to an ONNX file; this bundle is already built")
    if built and example_inputs is not None:
        raise UsageError("`example_inputs` are for a torch.nn.Module; this is a bundle")
    if isinstance(source, Bundle):
        return source
    if path is not None:
        check_source(path)
        registry = _plugins(plugins).registry
        if built or (Path(path).is_dir() and importer_of(path, registry) is None):
            return Bundle.load_unread(path, verify_structure) if unread else Bundle.load(path)
    return build(source, pipeline, target=target, example_inputs=example_inputs, plugins=plugins)


def _plugins(given: Plugins | None) -> Plugins:
    if given is None:
        return installed_plugins()
    checked: Plugins = instance_of(
        given, Plugins, "`plugins`", "what narrowpass.load_plugins returns, or None"
    )
    return checked


def _instruments(given: Sequence[Instrument]) -> Sequence[Instrument]:
    instead = "a list of narrowpass.Instrument"
    found = list(instance_of(given, Iterable, "`instruments`", instead))
    return [instance_of(item, Instrument, "an instrument", instead) for item in found]


def check_source(path: str | os.PathLike[str]) -> None:
    """Say what is missing where neither a model nor a bundle is at `path`.

    Raises:
        UsageError: nothing is there.
    """
    if not os.path.lexists(path):
        raise UsageError(
            f"{os.fspath(path)}: no such file or bundle; pass the path of an .onnx file or of a "
            "bundle's folder"
        )


def _versions(pipeline: Pipeline, used: set[str], registry: Registry) -> dict[str, str]:
    """Return the versions of the distributions whose passes ran or candidates were used."""
    owners = {registry.owner("passes", pass_.name) for pass_ in pipeline}
    owners |= {registry.owner("candidates", name) for name in used}
    pairs = (owner.rpartition(" ") for owner in sorted(owners) if owner)
    return {name: version for name, _, version in pairs}


def _reports(recorders: Mapping[str, _Recorder]) -> tuple[Report, ...]:
    """Return a report for each pass, with a part for each method."""
    first = next(iter(recorders.values()))
    return tuple(
        Report(
            str(pass_),
            {method: recorder.parts[index] for method, recorder in recorders.items()},
        )
        for index, pass_ in enumerate(first.passes)
    )
