"""Runs a kernel over enumerated sizes, on operands that lie one element behind an alignment."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, extra_bytes

Array = np.ndarray[Any, Any]

THREADS = (1, 3)
GUARD = 64
"""Bytes before and behind a result, which must stay as they are."""

UNIT = 2.0**-24
"""Half of the distance between 1 and the next float32."""


def edges(*tiles: int, least: int = 0) -> tuple[int, ...]:
    """Return 0 to 3 of each tile, and one more and less."""
    sizes = {count * tile + more for tile in tiles for count in range(4) for more in (-1, 0, 1)}
    return tuple(sorted(size for size in sizes if size >= least))


EDGES = edges(16, 32, 64)
"""0 to 3 tiles of 16, 32 and 64, and one more and less: the lanes of each instruction set."""

SOME = edges(16, least=1)
"""The same of 16 alone and without 0, for kernels that take no empty rows."""

FLAT = (*EDGES, *edges(16384, least=16383))
"""Counts of kernels over elements, among them those around the parts that threads take."""


def pairwise(sizes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield choices such that any two values of two sizes are chosen together.

    They are an orthogonal array: the size of index k is taken at i + k j, modulo a prime.
    """
    prime = max(map(len, sizes.values()))
    while any(prime % factor == 0 for factor in range(2, prime)) or prime < len(sizes) - 1:
        prime += 1
    seen = set()
    for i, j in itertools.product(range(prime), range(prime)):
        at = [j, *((i + k * j) % prime for k in range(len(sizes) - 1))]
        chosen = tuple(
            index % len(values) for index, values in zip(at, sizes.values(), strict=True)
        )
        if chosen not in seen:
            seen.add(chosen)
            pairs = zip(sizes.items(), chosen, strict=True)
            yield {name: values[index] for (name, values), index in pairs}


def combinations(
    sizes: Mapping[str, Sequence[Any]], most: int = 20_000
) -> Iterator[dict[str, Any]]:
    """Yield all choices, or `most` random ones where there are more."""
    lengths = [len(values) for values in sizes.values()]
    count = math.prod(lengths)
    rng = np.random.default_rng(47)
    for number in range(count) if count <= most else rng.integers(0, count, most):
        at = np.unravel_index(number, lengths)
        pairs = zip(sizes.items(), at, strict=True)
        yield {name: values[index] for (name, values), index in pairs}


def shifted(array: Array) -> tuple[Array, int]:
    """Return memory that has the elements, and where: one element behind its beginning.

    What kernels may read behind them are NaN, and nothing lies behind that.
    """
    array = np.ascontiguousarray(array)
    start = array.itemsize
    memory = np.full(start + array.nbytes + extra_bytes(), 255, np.uint8)
    memory[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
    return memory, start


@dataclass
class Kernel:
    """What a case gets: the kernel with a number of threads.

    Attributes:
        call: name in the table.
        threads: of the pool.
        rng: random numbers.
        bits: of all results, a digest.
        only_bits: whether results are not compared with what is expected: operands whose results
            are exact are replaced by others, of which the order of additions changes the bits.
    """

    call: str
    threads: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(47))
    bits: list[bytes] = field(default_factory=list)
    only_bits: bool = False

    @property
    def pool(self) -> Any:
        """The threads."""
        return shared(self.threads)

    def floats(self, *shape: int) -> Array:
        """Return standard normal float32."""
        return self.rng.standard_normal(shape, np.float32)

    def bytes(self, *shape: int) -> Array:
        """Return any int8."""
        return self.rng.integers(-128, 128, shape, np.int8)

    def run(
        self,
        params: Any,
        inputs: Sequence[Array],
        shape: Sequence[int],
        dtype: Any,
        *,
        operator: Any = None,
        workspace: int = 0,
        before: Array | None = None,
    ) -> Array:
        """Run the kernel; return the result, around which nothing was written.

        Args:
            params: of the kernel, or None.
            inputs: operands.
            shape: of the result.
            dtype: of the result.
            operator: of XNNPACK.
            workspace: in bytes.
            before: what the output has before the run; garbage by default.
        """
        count = len(inputs)
        entry = Entry(self.call, range(count), count, operator, params, True, self.call)
        tape = Tape([entry], count + 1)
        held = [shifted(array) for array in inputs]
        for number, (memory, start) in enumerate(held):
            tape.bind(number, memory, start)
        dtype = np.dtype(dtype)
        start, size = GUARD + dtype.itemsize, math.prod(shape) * dtype.itemsize
        memory = np.full(start + size + GUARD, 85, np.uint8)
        inside = memory[start : start + size]
        if before is not None:
            inside[...] = np.ascontiguousarray(before).reshape(-1).view(np.uint8)
        tape.bind(count, memory, start)
        scratch = np.full(workspace + 64 + extra_bytes(), 255, np.uint8)
        tape.bind_workspace(scratch, -scratch.ctypes.data % 64)
        tape.run(self.pool)
        assert (memory[:start] == 85).all(), "written in front of the result"
        assert (memory[start + size :] == 85).all(), "written behind the result"
        self.bits.append(inside.tobytes())
        return inside.view(dtype).reshape(shape)

    def expect(
        self,
        params: Any,
        inputs: Sequence[Array],
        expected: Array,
        tolerance: float = 0.0,
        *,
        steps: int = 0,
        **options: Any,
    ) -> None:
        """Run the kernel and compare.

        Args:
            params: of the kernel, or None.
            inputs: operands.
            expected: the result.
            tolerance: largest error, relative to the largest element; 0 for equality.
            steps: largest difference of integers.
            options: of `run`.
        """
        got = self.run(params, inputs, expected.shape, expected.dtype, **options)
        if self.only_bits:
            return
        if steps:
            assert (np.abs(got.astype(np.int64) - expected) <= steps).all()
        else:
            compare(got, expected, tolerance)


def compare(got: Array, expected: Array, tolerance: float = 0.0) -> None:
    """Assert that elements differ by `tolerance` times the largest finite one at most."""
    if np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f"):
        return
    if not tolerance:
        np.testing.assert_array_equal(got, expected)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale)


Check = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """How to check a kernel, and the sizes: values by name, which `check` gets."""

    check: Check
    sizes: Mapping[str, Sequence[Any]]


class Cases(dict[str, list[Case]]):
    """The cases of some rows of the table of kernels, by call."""

    def of(self, call: str, **sizes: Sequence[Any]) -> Callable[[Check], Check]:
        """Add a function of a `Kernel` and of sizes."""

        def add(check: Check) -> Check:
            self.setdefault(call, []).append(Case(check, sizes))
            return check

        return add

    def run(self, call: str, *, every: bool = False) -> None:
        """Check a kernel with pairwise combinations of sizes and threads, or by `combinations`."""
        for case in self[call]:
            given = {**case.sizes, "threads": THREADS}
            for sizes in (combinations if every else pairwise)(given):
                _run(case, Kernel(call, sizes.pop("threads")), sizes)

    def digests(self, stride: int) -> dict[str, str]:
        """Return a digest of the bits of one of `stride` pairwise combinations, by its name.

        It is empty where a case has no kernel for the sizes or the processor.
        """
        found = {}
        for call, cases in self.items():
            for case in cases:
                for sizes in itertools.islice(pairwise(case.sizes), 0, None, stride):
                    kernel = Kernel(call, 1, only_bits=True)
                    _run(case, kernel, sizes)
                    bits = hashlib.sha256(b"".join(kernel.bits)).hexdigest() if kernel.bits else ""
                    found[f"{call} {case.check.__name__} {sizes}"] = bits
        return found


def _run(case: Case, kernel: Kernel, sizes: Mapping[str, Any]) -> None:
    try:
        case.check(kernel, **sizes)
    except Exception as error:
        error.add_note(f"{kernel.call}, {case.check.__name__}: {sizes}")
        raise
