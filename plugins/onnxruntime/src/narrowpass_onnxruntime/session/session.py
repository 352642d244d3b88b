"""`InferenceSession`: the interface of onnxruntime's class, on a program of narrowpass."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from narrowpass.bundle import Bundle, is_bundle
from narrowpass.errors import DataError, NarrowpassError, UsageError
from narrowpass_ir.io import save_model
from narrowpass_ir.tensors.threads import ThreadPool
from narrowpass_onnxruntime.session.binding import IOBinding
from narrowpass_onnxruntime.session.creation import Created, Request, create
from narrowpass_onnxruntime.session.errors import error, is_installed, unsupported
from narrowpass_onnxruntime.session.feeding import Feeding
from narrowpass_onnxruntime.session.metadata import Interface, ModelMetadata, NodeArg
from narrowpass_onnxruntime.session.options import SessionSettings, check_run_options
from narrowpass_onnxruntime.session.overrides import Overrides
from narrowpass_onnxruntime.session.profile import Profile
from narrowpass_onnxruntime.session.providers import Providers
from narrowpass_onnxruntime.session.source import Source
from narrowpass_onnxruntime.session.values import ort_value_of, view_of

_log = logging.getLogger("narrowpass.onnxruntime")

_KWARGS = ("enable_fallback", "read_config_from_model", "disabled_optimizers")
"""Arguments that onnxruntime's class takes beside the named ones; none has a meaning here."""


class InferenceSession:
    """Runs a model on narrowpass; see ``onnxruntime.InferenceSession``.

    Several threads may run it; they take turns.

    Args:
        path_or_bytes: path of an ONNX file, with its external data, or of a bundle; or the
            serialized model.
        sess_options: ``onnxruntime.SessionOptions``, or an object with its attributes.
        providers: what onnxruntime takes. Options of narrowpass are those of
            ``NarrowpassExecutionProvider``.
        provider_options: of the providers.
        kwargs: what onnxruntime takes.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph, Fail: as onnxruntime, for a model that cannot be
            used. These classes, and those below, are onnxruntime's where it is installed.
        NotImplemented: an option that is not supported.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        unknown = [name for name in kwargs if name not in _KWARGS]
        if unknown:
            warnings.warn(
                f"InferenceSession takes no argument {unknown[0]!r}; it is ignored, as in "
                "onnxruntime's class",
                stacklevel=2,
            )
        self._sess_options = sess_options
        self._settings = SessionSettings.of(sess_options)
        self._source = Source.of(path_or_bytes, self._settings.data_folder)
        self._worker: tuple[int, ThreadPool] | None = None  # of a process
        self._starting = threading.Lock()
        self._profile = Profile(self._settings.profile_prefix) if self._settings.profile else None
        self._open(Providers.of(providers, provider_options))

    def _open(self, providers: Providers) -> None:
        began = 0 if self._profile is None else self._profile.now()
        request = Request(self._source, self._settings, providers.options, self._overrides)
        created = create(request)
        write_optimized(created.bundle, self._settings)
        self._request, self._named = request, True
        self._use(created)
        self._providers = providers
        if self._profile is not None:
            self._profile.add("session_initialization", began)

    def _use(self, created: Created) -> None:
        self._interface = created.interface
        self._program = created.program
        self._run_program = created.program.run
        self._feeding = Feeding(created.interface)
        self._outputs = [arg.name for arg in created.interface.outputs]
        self._converts = any(
            arg.type == "tensor(string)" or arg.name in created.interface.classes
            for arg in created.interface.outputs
        )
        self._plain = self._profile is None and not self._converts

    def _forget_names(self, name: str) -> None:
        """Compile the model again, so that dimensions of one name may have several sizes."""
        with self._starting:
            if not self._named:
                return  # another thread was first
            if not is_bundle(self._source.path):
                _log.warning(
                    "%s: dimension %r has two sizes in one run; the model is compiled again "
                    "without the names of its dimensions",
                    self._source.name,
                    name,
                )
                self._use(create(replace(self._request, named=False)))
            self._named = False

    def _overrides(self, interface: Interface) -> Overrides:
        if self._sess_options is None or not is_installed():
            return Overrides()
        import onnxruntime

        if not isinstance(self._sess_options, onnxruntime.SessionOptions):
            return Overrides()
        from narrowpass_onnxruntime.session.overrides import overrides_of

        return overrides_of(self._sess_options, interface)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: of the outputs to return; None, or none, for all.
            input_feed: a numpy array, a list of numbers or an ``OrtValue`` by input name.
            run_options: ``onnxruntime.RunOptions``.

        Returns:
            The outputs, in the order of their names.

        Raises:
            ValueError: an input that has no value.
            InvalidArgument: an unknown input or output, or a value that does not fit its input.
            Fail: the run has failed, or was ended by its options.
        """
        if run_options is not None:
            check_run_options(run_options)
        if self._plain and not isinstance(output_names, str):
            try:
                results = self._run_program(input_feed)
                if not output_names:
                    return [*results.values()]
                return [results[name] for name in output_names]
            except (DataError, KeyError, TypeError):
                pass  # the slow way: each name and value is checked, and converted
            except NarrowpassError as problem:
                raise error("Fail", str(problem)) from problem
        return self.run_into(self._names(output_names), input_feed, {})

    def run_into(
        self, names: Sequence[str], feeds: Mapping[str, Any], out: Mapping[str, Any]
    ) -> list[Any]:
        """Run the model on feeds of any form that `run` takes.

        Args:
            names: of the outputs to return.
            feeds: by input name.
            out: arrays that outputs are written into, by name.

        Raises:
            ValueError, InvalidArgument, Fail: see `run`.
        """
        names = self._names(names)
        converted = self._feeding.convert(feeds)
        if self._named and (name := self._feeding.conflict(converted)):
            self._forget_names(name)
        began = 0 if self._profile is None else self._profile.now()
        try:
            wanted = list(dict.fromkeys(names))
            results = self._run_program(converted, outputs=wanted, out={**out} if out else None)
        except (DataError, UsageError) as problem:
            raise error("InvalidArgument", str(problem)) from problem
        except NarrowpassError as problem:
            raise error("Fail", str(problem)) from problem
        if self._profile is not None:
            self._profile.add("model_run", began)
            self._profile.add_nodes(self._program, converted, began)
        return [self._returned(name, results[name]) for name in names]

    def _returned(self, name: str, value: Any) -> Any:
        """Return an output: text as objects, scores of classes as maps, as onnxruntime does."""
        if isinstance(value, np.ndarray) and value.dtype.kind == "U":
            return value.astype(object)
        classes = self._interface.classes.get(name)
        if classes is None:
            return value
        return [dict(zip(classes, row.tolist(), strict=True)) for row in value]

    def _names(self, names: Any) -> list[str]:
        """Return the names of outputs that a caller asks for; all for none.

        Raises:
            TypeError: no list of names.
            InvalidArgument: an unknown name.
        """
        if not names:
            return self._outputs
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"`output_names` must be a list of names, not {names!r}")
        for name in names:
            if name not in self._outputs:
                raise error(
                    "InvalidArgument",
                    f"invalid output name: {name!r}; the model's outputs: "
                    f"{', '.join(self._outputs)}",
                )
        return list(names)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run the model in another thread, which calls back.

        Args:
            output_names: as for `run`.
            input_feed: as for `run`; nothing may write to it meanwhile.
            callback: takes the outputs, `user_data`, and the text of an error, which is empty where
                there is none.
            user_data: what the callback is called with.
            run_options: as for `run`.

        Raises:
            ValueError: an input that has no value.
        """
        self._feeding.check_names(input_feed.keys())
        with self._starting:
            process = os.getpid()
            if self._worker is None or self._worker[0] != process:
                # A forked child has the object, and not its thread.
                self._worker = process, ThreadPool(1, "narrowpass-run-async")
            worker = self._worker[1]

        def work() -> None:
            results: list[Any] = []
            message = ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as problem:  # noqa: BLE001  # the callback's to handle
                message = str(problem)
            callback(results, user_data, message)

        worker.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run the model on values of the class ``OrtValue``, and return such; see `run`."""
        feeds = {name: view_of(value) for name, value in input_dict_ort_values.items()}
        return [ort_value_of(value) for value in self.run(output_names, feeds, run_options)]

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Any,
    ) -> None:
        """Run the model on a vector of values, and append the outputs to `fetches`; see `run`."""
        from onnxruntime import OrtValue

        given = {name: OrtValue(value) for name, value in zip(feed_names, feeds, strict=True)}
        for value in self.run_with_ort_values(fetch_names, given, run_options):
            fetches.push_back(value._get_c_value())  # noqa: SLF001  # there is no other way

    def io_binding(self) -> IOBinding:
        """Return a binding of inputs and outputs, for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run the model on inputs and outputs that are bound.

        Raises:
            ValueError: a binding of another session.
            RuntimeError: see `IOBinding.run`.
        """
        if iobinding.session is not self:
            raise ValueError("this binding is of another session; call io_binding() of this one")
        if run_options is not None:
            check_run_options(run_options)
        iobinding.run()

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that must be fed."""
        return [*self._interface.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return [*self._interface.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with defaults."""
        return [*self._interface.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata of the model."""
        return self._interface.metadata

    def get_session_options(self) -> Any:
        """Return the options that the session was created with, or onnxruntime's defaults."""
        if self._sess_options is not None or not is_installed():
            return self._sess_options
        import onnxruntime

        return onnxruntime.SessionOptions()

    def get_providers(self) -> list[str]:
        """Return narrowpass's provider, and the CPU's, which programs look for."""
        return [*self._providers.reported]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider as text."""
        return {name: {**options} for name, options in self._providers.reported.items()}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Create the session again, with other options of providers.

        Raises:
            RuntimeError: a provider that is not available.
        """
        self._open(Providers.of(providers, provider_options, strict=True))

    def disable_fallback(self) -> None:
        """Do nothing: a session never changes its providers."""

    def enable_fallback(self) -> None:
        """Do nothing: a session never changes its providers."""

    def end_profiling(self) -> str:
        """Write the profile, and return the name of its file; empty where none is recorded."""
        profile, self._profile = self._profile, None
        if profile is None:
            return ""
        self._plain = not self._converts
        return profile.write()

    def get_profiling_start_time_ns(self) -> int:
        """Return when the profile began, in nanoseconds since 1970; 0 where none is recorded."""
        return 0 if self._profile is None else self._profile.start_ns

    def get_input_memory_infos(self) -> list[Any]:
        """Return where each input lies: memory of the CPU."""
        return [_cpu_memory() for _ in self._interface.inputs]

    def get_output_memory_infos(self) -> list[Any]:
        """Return where each output lies: memory of the CPU."""
        return [_cpu_memory() for _ in self._interface.outputs]

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str,
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> Any:
        """Return an ``OrtValue`` of memory that is not initialized."""
        from onnxruntime import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: no graph is captured on a CPU."""

    def get_tuning_results(self) -> list[Any]:
        """Return nothing: no kernel is tuned per session."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Take no results.

        Raises:
            NotImplemented: there are some, and they must be valid.
        """
        if results and error_on_invalid:
            raise unsupported("set_tuning_results", "leave it out")

    def get_input_epdevices(self) -> list[None]:
        """Return None for each input: no device of onnxruntime's runs the model."""
        return [None] * len(self._interface.inputs)

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Refuse: nodes are not assigned to providers.

        Raises:
            NotImplemented: always.
        """
        raise unsupported(
            "get_provider_graph_assignment_info", "`narrowpass explain` says what runs each node"
        )

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """Refuse: no option changes while a session runs.

        Raises:
            NotImplemented: always.
        """
        raise unsupported("set_ep_dynamic_options", "pass provider options to the constructor")


def _cpu_memory() -> Any:
    from onnxruntime import OrtAllocatorType, OrtMemoryInfo, OrtMemType

    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, OrtMemType.DEFAULT)


def write_optimized(bundle: Bundle, settings: SessionSettings) -> None:
    """Write the model of a bundle where the settings say; nothing where they say nothing.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(settings.optimized_path)
    if not settings.optimized_path:
        return
    model = next(iter(bundle.methods.values()))
    save_model(model, path)
    if settings.external_name:
        proto = onnx.load_model(path)
        (path.parent / settings.external_name).unlink(missing_ok=True)  # onnx would append to it
        onnx.save_model(
            proto,
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=settings.external_name,
            size_threshold=settings.external_least,
        )
