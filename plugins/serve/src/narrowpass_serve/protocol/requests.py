"""Inference requests: from JSON, with binary data behind it or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrowpass_ir.arguments import kind_of, suggest
from narrowpass_serve.errors import RequestError
from narrowpass_serve.json_body import parse_object
from narrowpass_serve.models.queueing import Arrays
from narrowpass_serve.protocol.tensors import check_shape, datatype_of, from_bytes, from_json

if TYPE_CHECKING:
    from narrowpass_serve.models.methods import Method

_SHARED_MEMORY = "shared_memory_region"
_UNKNOWN_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")


@dataclass(frozen=True)
class InferRequest:
    """What a client asks for.

    Attributes:
        id: of the request, which the answer repeats; empty for none.
        feeds: arrays by input name.
        outputs: names of the outputs to return; None for all.
        binary: of the outputs, those that are returned as bytes.
    """

    id: str
    feeds: Arrays
    outputs: tuple[str, ...] | None
    binary: frozenset[str]


def read_request(body: bytes, header: str | None, method: Method) -> InferRequest:
    """Read the body of a request.

    Args:
        body: JSON, then the binary data.
        header: the value of Inference-Header-Content-Length: bytes of the JSON; None for all.
        method: that is to run.

    Raises:
        RequestError: it is not what the protocol says, or not for this method.
    """
    length = _length(header, len(body))
    document = parse_object(body[:length])
    binary = memoryview(body)[length:]
    parameters = _parameters(document, "the request")
    check_parameters(parameters)
    feeds: Arrays = {}
    for index, given in enumerate(_list(document, "inputs")):
        name = _name(given, f"inputs[{index}]")
        if name in feeds:
            raise RequestError(f"input {name!r} comes twice; pass it once")
        feeds[name], binary = _feed(name, given, binary, method)
    if len(binary):
        raise RequestError(f"{len(binary)} bytes of binary data belong to no input")
    names, as_bytes = _outputs(document, method, parameters.get("binary_data_output") is True)
    id_ = document.get("id", "")
    if not isinstance(id_, str):
        raise RequestError(f"`id` must be text, not {kind_of(id_)}")
    return InferRequest(id_, feeds, names, as_bytes)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that would change the result.

    Raises:
        RequestError: sequences, which the server does not have.
    """
    for name in _UNKNOWN_SEQUENCES:
        if parameters.get(name):
            raise RequestError(
                f"parameter {name!r}: this server keeps no state between requests; leave it out",
                parameter=name,
            )


def check_input(name: str, datatype: object, method: Method) -> str:
    """Return the datatype of an input.

    Raises:
        RequestError: the method has no such input, or of another datatype.
    """
    specs = {spec.name: spec for spec in method.inputs}
    if name not in specs:
        raise RequestError(
            f"there is no input {name[:200]!r}{suggest(name, specs)}; inputs: {', '.join(specs)}"
        )
    wanted = datatype_of(specs[name].dtype, f"input {name!r}")
    if datatype != wanted:
        raise RequestError(f"input {name!r} is of datatype {wanted}, not {datatype!r:.100}")
    return wanted


def check_output(name: str, method: Method) -> None:
    """Check that a method has an output.

    Raises:
        RequestError: it has not.
    """
    names = [spec.name for spec in method.outputs]
    if name not in names:
        raise RequestError(
            f"there is no output {name[:200]!r}{suggest(name, names)}; outputs: {', '.join(names)}"
        )


def _length(header: str | None, size: int) -> int:
    if header is None:
        return size
    if not (header.isascii() and header.isdigit() and int(header[:20]) <= size):
        raise RequestError(
            f"Inference-Header-Content-Length: must be a number of bytes up to {size}, those of "
            f"the body, not {header!r:.100}"
        )
    return int(header)


def _feed(
    name: str, given: Mapping[str, Any], binary: memoryview, method: Method
) -> tuple[Any, memoryview]:
    """Return the array of an input, and the binary data that is left."""
    what = f"input {name!r}"
    datatype = check_input(name, given.get("datatype"), method)
    shape = check_shape(given.get("shape"), what)
    parameters = _parameters(given, what)
    _refuse_shared_memory(parameters, what)
    size = parameters.get("binary_data_size")
    if size is None:
        return from_json(datatype, shape, given.get("data"), what), binary
    if "data" in given:
        raise RequestError(f"{what} has both `data` and `binary_data_size`; leave one out")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
        raise RequestError(
            f"{what}: `binary_data_size` must be a number of bytes up to the {len(binary)} that "
            f"are left, not {size!r:.100}; does Inference-Header-Content-Length say how long the "
            "JSON is?"
        )
    return from_bytes(datatype, shape, binary[:size], what), binary[size:]


def _outputs(
    document: Mapping[str, Any], method: Method, binary: bool
) -> tuple[tuple[str, ...] | None, frozenset[str]]:
    """Return the outputs that are asked for, and those of them that are returned as bytes."""
    if not document.get("outputs"):
        return None, frozenset(spec.name for spec in method.outputs) if binary else frozenset()
    as_bytes: dict[str, bool] = {}
    for index, given in enumerate(_list(document, "outputs")):
        name = _name(given, f"outputs[{index}]")
        check_output(name, method)
        what = f"output {name!r}"
        if name in as_bytes:
            raise RequestError(f"{what} comes twice; ask for it once")
        parameters = _parameters(given, what)
        _refuse_shared_memory(parameters, what)
        if parameters.get("classification"):
            raise RequestError(
                f"{what}: this server does not classify; leave `classification` out",
                parameter="classification",
            )
        chosen = parameters.get("binary_data", binary)
        if not isinstance(chosen, bool):
            raise RequestError(f"{what}: `binary_data` must be true or false")
        as_bytes[name] = chosen
    return tuple(as_bytes), frozenset(name for name, chosen in as_bytes.items() if chosen)


def _refuse_shared_memory(parameters: Mapping[str, Any], what: str) -> None:
    if _SHARED_MEMORY in parameters:
        raise RequestError(
            f"{what}: this server has no shared memory; send the data", parameter=_SHARED_MEMORY
        )


def _list(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = document.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RequestError(f"`{name}` must be a list of objects")
    return found


def _name(given: Mapping[str, Any], where: str) -> str:
    name = given.get("name")
    if not isinstance(name, str):
        raise RequestError(f"`{where}.name` must be text")
    return name


def _parameters(given: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    found = given.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise RequestError(f"{what}: `parameters` must be an object, not {kind_of(found)}")
    return found
