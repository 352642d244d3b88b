"""Tries of models in a process of their own, which may die of one: how each of them fails.

`main` is that process: it reads requests from its standard input and answers on its standard
output, both pickled.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from narrowpass import Plugins
    from narrowpass_testing.random_models import Case, Verdict

WRONG, CRASH, HANG = "wrong result", "crash", "hang"


@dataclass(frozen=True)
class Way:
    """How models are built and run.

    Attributes:
        backend: its text; None for the default one.
        pipeline: its text; None for the backend's default.
        threads: of a run; None for all.
        tolerance: the text of a `narrowpass_analysis.metrics.Tolerance`; None for that of types.
        disabled: names of plugins that are left out.
    """

    backend: str | None = None
    pipeline: str | None = None
    threads: int | None = 1
    tolerance: str | None = None
    disabled: Sequence[str] = ()


@dataclass(frozen=True)
class Failure:
    """How a model fails.

    Attributes:
        kind: `WRONG`, `CRASH`, `HANG` or the class of an error.
        message: the details.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Trial:
    """What came of one try.

    Attributes:
        oracles: names of the oracles that run the model; None where one ended the process.
        failure: how it failed; None where it did not.
    """

    oracles: tuple[str, ...] | None
    failure: Failure | None


class Trials:
    """A process that tries models; started again when it dies."""

    def __init__(self, way: Way, timeout: float) -> None:
        self.way, self.timeout = way, timeout
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._end()

    def run(self, case: Case) -> Trial:
        """Try a case."""
        oracles = self._ask("judge", case)
        if oracles is None or isinstance(oracles, Failure):
            return Trial(None, None)
        answer = self._ask("run", case)
        failure = answer if isinstance(answer, Failure) else None
        return Trial(tuple(oracles), failure)

    def values(self, case: Case) -> dict[str, Any]:
        """Return the elements of all values of a case, as far as an oracle computes them."""
        found = self._ask("values", case)
        return found if isinstance(found, dict) else {}

    def _ask(self, what: str, case: Case) -> Any:
        """Return an answer; a failure where the process dies or takes too long."""
        request = (what, case.model.SerializeToString(), case.feeds, case.sizes, case.slack)
        child, requests, answers = self._started()
        try:
            pickle.dump(request, requests)
            requests.flush()
            return self._read(answers)
        except TimeoutError:
            self._end()
            return Failure(HANG, f"no result after {self.timeout:g} s")
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            code = child.wait()
            self._end()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Failure(CRASH, f"the process ended by {how}")

    def _read(self, stream: IO[bytes]) -> Any:
        """Read an answer, of which the first 8 bytes are the length."""
        deadline, found = time.monotonic() + self.timeout, b""
        while len(found) < 8 or len(found) < 8 + int.from_bytes(found[:8], "little"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise TimeoutError
            part = os.read(stream.fileno(), 1 << 20)
            if not part:
                raise EOFError
            found += part
        return pickle.loads(found[8:])

    def _started(self) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        """Return the process, and its standard input and output; start it where there is none."""
        child = self._child
        if child is not None and child.poll() is not None:
            self._end()
            child = None
        started = child is None
        if child is None:
            # It finds what this process finds, plugins included.
            paths = os.pathsep.join(path for path in sys.path if path)
            child = self._child = subprocess.Popen(
                [sys.executable, "-c", "from narrowpass_testing._trials import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths},
            )
        requests, answers = child.stdin, child.stdout
        if requests is None or answers is None:
            raise RuntimeError("the process has no pipes")
        if started:
            pickle.dump(self.way, requests)
            requests.flush()
            os.read(answers.fileno(), 1)  # it has imported all that it needs: no try pays for that
        return child, requests, answers

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with suppress(OSError):
                child.communicate()


def _failure(way: Way, case: Case, verdict: Verdict, plugins: Plugins) -> Failure | None:
    """Build and run a model as a way says; return how it fails."""
    import onnx_ir as ir

    import narrowpass
    from narrowpass_testing.random_models import copies, mismatches

    try:
        bundle = narrowpass.build(
            ir.from_proto(case.model),
            way.pipeline,
            target=way.backend,
            calibration=[copies(case.feeds)] if way.pipeline is not None else None,
            plugins=plugins,
        )
        with narrowpass.load(
            bundle, way.backend, threads=way.threads, cache=False, plugins=plugins
        ) as program:
            got = program.run(copies(case.feeds))
    except Exception as error:  # noqa: BLE001  # it is what is looked for
        return Failure(type(error).__name__, " ".join(str(error).split()))
    if way.tolerance is None:
        for _, message in mismatches(case, got, verdict):
            return Failure(WRONG, message)
        return None
    from narrowpass_analysis.metrics import Tolerance, difference

    limit = Tolerance.parse(way.tolerance)
    texts = [
        limit.check({name: difference(got[name], value) for name, value in values.items()})
        for values in verdict.candidates.values()
    ]
    return Failure(WRONG, texts[0][0]) if texts and all(texts) else None


def main() -> None:
    """Answer requests until there are no more."""
    import warnings

    import numpy as np
    import onnx

    from narrowpass import load_plugins
    from narrowpass_testing.random_models import Case, Verdict, judge
    from narrowpass_testing.random_models._reducing import values_of

    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    way: Way = pickle.load(requests)
    plugins = load_plugins(tuple(way.disabled))
    verdict = Verdict({})
    answers.write(b"!")
    answers.flush()
    while True:
        try:
            what, model, *rest = pickle.load(requests)
        except EOFError:
            return
        case = Case(onnx.load_model_from_string(model), *rest)
        answer: Any
        if what == "judge":
            verdict = judge(case.model, case.feeds, case.slack)
            answer = sorted(verdict.candidates)
        elif what == "values":
            answer = values_of(case)
        else:
            answer = _failure(way, case, verdict, plugins)
        data = pickle.dumps(answer)
        answers.write(len(data).to_bytes(8, "little") + data)
        answers.flush()
