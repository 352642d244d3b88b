"""``narrowpass run``."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from narrowpass.cli.options import (
    backend_option,
    cache_dir_option,
    cache_option,
    choose_method,
    input_option,
    json_option,
    method_option,
    native_option,
    pipeline_option,
    threads_option,
)
from narrowpass.cli.output import print_json, print_table
from narrowpass.cli.state import State, pass_state

if TYPE_CHECKING:
    import numpy as np


@click.command()
@click.argument("model", metavar="BUNDLE|MODEL.onnx")
@method_option
@input_option
@click.option("-o", "--output", metavar="OUT.npz", help="Write the outputs as arrays.")
@backend_option
@pipeline_option
@threads_option
@native_option
@cache_option
@cache_dir_option
@json_option
@pass_state
def run(
    state: State,
    model: str,
    method: str | None,
    inputs: tuple[str, ...],
    output: str | None,
    backend: str | None,
    pipeline: str | None,
    threads: int | None,
    require_native: bool,
    cache: bool,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Run a model on inputs from files.

    Arrays must have exactly the dtype of their input. numpy stores no bfloat16 and no types below
    8 bits: pass float32 for bfloat16 and float8 (values are rounded), int8 or uint8 for integers
    of fewer bits. Outputs are stored in the same way. A sequence is stored as NAME[0], NAME[1]...

    The JSON document has the keys method, backend, output, and outputs: name, dtype, shape, min,
    max and mean (null where they do not apply), nan and inf (how many elements are) of each.
    """
    from narrowpass.driver import open_bundle
    from narrowpass.runtime.backend import CompileOptions, compile_bundle
    from narrowpass_analysis.inputs import check_given, files_of, read_inputs
    from narrowpass_ir.data.feeds import FeedChecker
    from narrowpass_ir.files import check_result_file

    if output is not None:
        check_result_file(output, "-o", (model, *files_of(inputs)))
    chosen = state.registry.backend(backend)
    bundle = open_bundle(model, chosen, pipeline=pipeline, plugins=state.plugins)
    method = choose_method(method, list(bundle.methods))
    graph = bundle.methods[method].graph
    feeds = read_inputs(inputs, graph)
    check_given(feeds, graph, method)
    FeedChecker.of(graph, method).check(feeds)
    if backend is None:
        state.note(f"backend: {chosen}")
    options = CompileOptions(
        threads=threads,
        require_native=require_native,
        cache=cache,
        cache_dir=cache_dir,
    )
    with compile_bundle(chosen, bundle, options) as program:
        results = program.run(feeds, method)
    arrays = flatten(results)
    if output is not None:
        write_npz(Path(output), arrays)
    rows = [_describe(name, array) for name, array in arrays.items()]
    if as_json:
        document = {"method": method, "backend": str(chosen), "output": output, "outputs": rows}
        print_json(document)
        return
    _print(rows)
    if output is not None:
        click.echo(f"wrote {output}")


def flatten(results: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return arrays by name: those of sequences as ``NAME[0]``, empty optionals left out."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in results.items():
        if isinstance(value, list | tuple):
            arrays.update(flatten({f"{name}[{i}]": item for i, item in enumerate(value)}))
        elif value is not None:
            arrays[name] = value
    return arrays


def write_npz(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays as ``.npz``, in one step. The same arrays are written as the same bytes.

    Raises:
        UsageError: `path` is a folder, or the folder around it does not exist.
        OutputError: the file cannot be written.
    """
    import numpy as np

    from narrowpass_analysis.inputs import upcast_to_numpy
    from narrowpass_ir.files import replacing_file

    with replacing_file(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, upcast_to_numpy(array), allow_pickle=False)


def _describe(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    import numpy as np

    from narrowpass_analysis.inputs import upcast_to_numpy
    from narrowpass_analysis.nonfinite import count_nonfinite

    nan, inf = count_nonfinite(array)
    row: dict[str, Any] = {
        "name": name,
        "dtype": "string" if array.dtype.kind in "OU" else str(array.dtype),
        "shape": list(array.shape),
    }
    numbers = upcast_to_numpy(array)
    if numbers.dtype.kind not in "biuf" or numbers.size == 0:
        return {**row, "min": None, "max": None, "mean": None, "nan": nan, "inf": inf}
    with np.errstate(all="ignore"):
        mean = float(np.mean(numbers, dtype=np.float64))
    least, most = numbers.min().item(), numbers.max().item()
    return {**row, "min": least, "max": most, "mean": mean, "nan": nan, "inf": inf}


def _print(rows: list[dict[str, Any]]) -> None:
    def text(number: float | None) -> str:
        return "" if number is None else f"{number:.6g}"

    # Most outputs have none: their columns would say nothing.
    numbers = ["min", "max", "mean", *(key for key in ("nan", "inf") if any(r[key] for r in rows))]
    cells = [
        (row["name"], row["dtype"], str(row["shape"]), *(text(row[key]) for key in numbers))
        for row in rows
    ]
    titles = {"nan": "NaN", "inf": "Inf"}
    columns = ("output", "dtype", "shape", *(titles.get(key, key) for key in numbers))
    print_table(columns, cells, right=range(3, len(columns)))
