"""A bundle: methods over one named data map, in memory or as a ``.narrow`` folder."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from narrowpass.bundle import _files, publish
from narrowpass.bundle._plan import Plan, create_plan
from narrowpass.bundle.manifest import MANIFEST, WEIGHTS, Manifest, StateInfo
from narrowpass.bundle.report import Report
from narrowpass.errors import BundleError, NarrowpassError, UsageError
from narrowpass_ir.arguments import Uncopied, count_of, instance_of, kind_of
from narrowpass_ir.files import write_file
from narrowpass_ir.garbage import pause_collection
from narrowpass_ir.importing import check_assets
from narrowpass_ir.io import check_file
from narrowpass_ir.state import State
from narrowpass_ir.state_finding import check_states, check_states_among, find_states
from narrowpass_ir.tensors import safetensors

_METHOD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class NamedData:
    """A tensor of the data map.

    Attributes:
        dtype: its ONNX element type.
        shape: as in ONNX.
        nbytes: its length, packed where elements are smaller than a byte.
        sha256: of its bytes, as the manifest says; None where the bundle is only in memory.
        tensor: the tensor itself.
    """

    dtype: ir.DataType
    shape: tuple[int, ...]
    nbytes: int
    sha256: str | None
    tensor: ir.TensorProtocol


class UnreadModels(Mapping[str, ir.Model]):
    """Models by method, each built when it is first read. Several threads may read.

    Args:
        builders: build them from what was read of their files.
    """

    def __init__(self, builders: Mapping[str, Callable[[], ir.Model]]) -> None:
        self._builders = dict(builders)
        self._built: dict[str, ir.Model] = {}

    def __getitem__(self, name: str) -> ir.Model:
        if name not in self._built:
            with pause_collection():
                model = self._builders[name]()
            self._built.setdefault(name, model)  # of two threads, the first
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)


class Bundle(Uncopied):
    """Methods over one named data map.

    It can be neither pickled nor deeply copied: it may map files. Another process loads it by its
    path.

    The models are not copied: whoever changes one must create a new bundle for `data` and `key` to
    know of it. `save` looks at the models anew.

    Args:
        methods: a model for each method, in the order that the bundle keeps.
        pipeline: the text of the pipeline that built them.
        plugins: version by distribution, of the plugins whose passes ran, or candidates were used.
        reports: what the passes decided, in their order.
        states: what a session keeps between runs; None to find them, see `find_states`.
        assets: small files that are kept beside the models, such as ``tokenizer.json``: bytes by
            file name.

    Raises:
        UsageError: no method, a method name that cannot be a file name everywhere, or a state
            that no method has; an asset that cannot be a file beside the others.
    """

    _instead = (
        "save it, and call Bundle.load with the path in the other process; copy.copy returns a "
        "bundle of the same models"
    )

    def __copy__(self) -> Bundle:
        copied = Bundle(
            self.methods,
            pipeline=self.pipeline,
            plugins=self.plugins,
            reports=self.reports,
            states=self.states,
            assets=self.assets,
        )
        copied.__dict__.update(self.__dict__)
        return copied

    def __init__(
        self,
        methods: Mapping[str, ir.Model],
        *,
        pipeline: str = "",
        plugins: Mapping[str, str] = MappingProxyType({}),
        reports: Sequence[Report] = (),
        states: Sequence[State] | None = None,
        assets: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        instance_of(methods, Mapping, "the methods of a bundle", "a dict of models by name")
        check_method_names(methods)
        self.methods: Mapping[str, ir.Model] = methods
        if not self.unread:
            for name, model in methods.items():
                instance_of(model, ir.Model, f"method {name!r}", "an onnx_ir.Model")
            self.methods = MappingProxyType(dict(methods))
        self.pipeline = pipeline
        self.plugins: Mapping[str, str] = MappingProxyType(dict(plugins))
        self.reports = tuple(reports)
        self.states = find_states(methods) if states is None else check_states(states, methods)
        self.assets = check_assets(assets)
        self.manifest: Manifest | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Bundle:
        """Open a bundle folder. Weights stay in their file until somebody reads them.

        A build that replaces the folder meanwhile changes nothing: the bundle is the old one
        whole, or the new one whole. Tensors are not hashed here; `verify` does that.

        Raises:
            UsageError: nothing is at `path`, or not a folder.
            BundleError: it is damaged, incomplete, or of an unknown format version.
        """
        with pause_collection():
            loaded = _files.load(path)
            methods = {name: build() for name, build in loaded.builders.items()}
        return cls._of(loaded, methods, path)

    @classmethod
    def load_unread(
        cls, path: str | os.PathLike[str], verify: Callable[[ir.Model, str], None]
    ) -> Bundle:
        """Open a bundle folder as `load` does, but build each model when it is first read.

        Whoever reads a model must not change it: programs take it for what the file has.

        Args:
            path: of the folder.
            verify: called for each model that is built, with what messages call it.

        Raises:
            UsageError: as `load`.
            BundleError: as `load`; where a file is one that the manifest has the hash of, and no
                model for this narrowpass, not before its model is read.
        """
        loaded = _files.load(path)

        def build(name: str) -> ir.Model:
            model = loaded.builders[name]()
            verify(model, f"method {name!r}")
            return model

        builders = {name: functools.partial(build, name) for name in loaded.builders}
        return cls._of(loaded, UnreadModels(builders), path)

    @property
    def unread(self) -> bool:
        """Whether it was opened by `load_unread`, so that each model is what its file has."""
        return isinstance(self.methods, UnreadModels)

    @classmethod
    def _of(
        cls,
        loaded: _files.Loaded,
        methods: Mapping[str, ir.Model],
        path: str | os.PathLike[str],
    ) -> Bundle:
        manifest = loaded.manifest
        infos = [info for method in manifest.methods for info in method.inputs]
        ranks = {info.name: None if info.shape is None else len(info.shape) for info in infos}
        outputs = {info.name for method in manifest.methods for info in method.outputs}
        states = [State(s.input, s.output, s.axis) for s in manifest.states]
        try:
            check_states_among(states, ranks, outputs)
        except UsageError as error:
            raise BundleError(f"{os.fspath(path)}: {MANIFEST}: {error}") from error
        bundle = cls(
            methods,
            pipeline=manifest.pipeline,
            plugins=manifest.plugins,
            reports=loaded.reports,
            states=(),
            assets=loaded.assets,
        )
        bundle.states, bundle.manifest = tuple(states), manifest
        bundle.__dict__["_plan"] = loaded.plan
        return bundle

    @functools.cached_property
    def _plan(self) -> Plan:
        return create_plan(self.methods)

    @functools.cached_property
    def data(self) -> Mapping[str, NamedData]:
        """The named data map, in the order of the weights file.

        Raises:
            ModelError: a tensor that must be compared with another cannot be read.
        """
        hashes = self.manifest.tensors if self.manifest is not None else {}
        return MappingProxyType(
            {
                key: NamedData(
                    tensor.dtype,
                    tuple(tensor.shape.numpy()),
                    tensor.nbytes,
                    hashes[key].sha256 if key in hashes else None,
                    tensor,
                )
                for key, tensor in self._plan.tensors.items()
            }
        )

    def key(self, method: str, value: ir.Value) -> str:
        """Return the data key of an initializer.

        Raises:
            KeyError: it is not in the data map, since it stays inside the ONNX file.
        """
        return self._plan.keys[method, value]

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        progress: safetensors.Progress | None = None,
        threads: int | None = None,
    ) -> None:
        """Write the bundle as a folder, in one step: a reader sees what was there, or all of it.

        The same methods are written as the same bytes, however many threads write them.

        Args:
            path: absent, an empty folder, or a bundle, which is replaced.
            progress: called with the bytes of weights written and the bytes in all.
            threads: how many tensors are written at once; None for up to four.

        Raises:
            UsageError: something else is at `path`.
            OutputError: the folder cannot be written; what was there before is as it was.
            ModelError: a tensor cannot be read, or a model cannot be written as ONNX.
            BundleError: a tensor of a bundle that was loaded is not the one that its manifest says.
            NarrowpassError: ``onnx.checker`` refuses what was written but not what it was built
                from, which is a bug of ours.
        """
        if threads is not None:
            threads = count_of(threads, "`threads`")
        if progress is not None and not callable(progress):
            raise UsageError(f"`progress` must be a function, not {kind_of(progress)}")
        plan = create_plan(self.methods, threads)
        layout = safetensors.Layout.of(plan.tensors)
        with publish.replacing(path) as folder:
            with (folder / WEIGHTS).open("xb") as file:
                hashes = safetensors.write(
                    file.fileno(), layout, plan.tensors, threads=threads, progress=progress
                )
            methods = tuple(
                _files.write_method(folder, name, model, plan, layout)
                for name, model in self.methods.items()
            )
            for method in methods:
                problem = check_file(folder / method.file.path) if not method.checker else None
                if problem is not None:
                    raise NarrowpassError(
                        f"{os.fspath(path)}: method {method.name!r} as narrowpass writes it is not "
                        f"valid ONNX; this is a bug in narrowpass or in a pass: {problem}"
                    )
            manifest = Manifest(
                self.pipeline,
                dict(self.plugins),
                methods,
                _files.weights_info(layout),
                _files.tensor_infos(plan, layout, hashes),
                tuple(_files.write_reports(folder, self.reports)),
                tuple(StateInfo(s.input, s.output, s.axis) for s in self.states),
                tuple(_files.write_assets(folder, self.assets)),
            )
            write_file(folder / MANIFEST, manifest.to_json().encode())


def check_method_names(methods: Collection[str]) -> None:
    """Refuse names of methods that a bundle cannot have.

    Raises:
        UsageError: none, one that cannot be a file name everywhere, or two that are one there.
    """
    if not methods:
        raise UsageError("a bundle needs at least one method")
    seen: dict[str, str] = {}
    for name in methods:
        if not isinstance(name, str):
            raise UsageError(f"the name of a method must be text, not {kind_of(name)}")
        if not _METHOD_NAME.fullmatch(name) or name.endswith("."):
            raise UsageError(
                f"method name {name!r}: use letters, digits, '_', '.' and '-' only, not '.' or "
                "'-' first nor '.' last, and at most 200 of them"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise UsageError(
                f"method names {other!r} and {name!r} differ in upper and lower case only, which "
                "some file systems do not distinguish; rename one"
            )
