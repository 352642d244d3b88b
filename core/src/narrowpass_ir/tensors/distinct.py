"""Which of many tensors hold the same bytes, reading as little of them as possible."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import onnx_ir as ir

from narrowpass_ir.io import MappedTensor
from narrowpass_ir.tensors.streaming import SAMPLED, digest, sample
from narrowpass_ir.tensors.threads import ThreadPool


def first_equal(tensors: Sequence[ir.TensorProtocol], threads: int) -> list[int]:
    """Return, for each tensor, the index of the first one of the same dtype, shape and bytes.

    Tensors of different dtype or shape are never read; those that differ in a few sampled bytes
    are not read whole. What cannot be sampled (`ir.LazyTensor`) is read whole where another
    tensor has its dtype and shape.

    Raises:
        ModelError: a tensor's source cannot be read.
    """
    seen: dict[Hashable, int] = {}
    same = [seen.setdefault(_identity(tensor), index) for index, tensor in enumerate(tensors)]
    by_type: dict[Hashable, list[int]] = defaultdict(list)
    for index in sorted(set(same)):
        tensor = tensors[index]
        by_type[tensor.dtype, tuple(tensor.shape.numpy())].append(index)

    materialize = threading.Lock()
    with ThreadPool(threads) as pool:

        def sample_or_hash(index: int) -> tuple[bytes, str | None]:
            sampled = sample(tensors[index])
            if sampled is not None:
                return sampled, None
            whole = digest(tensors[index], materialize)
            return whole.sample, whole.sha256

        candidates = _shared(by_type.values())
        samples_or_hashes = dict(zip(candidates, pool.map(sample_or_hash, candidates), strict=True))
        by_sample: dict[Hashable, list[int]] = defaultdict(list)
        for group in by_type.values():
            for index in group:
                if index in samples_or_hashes:
                    by_sample[group[0], samples_or_hashes[index][0]].append(index)

        def content_key(index: int) -> Hashable:
            sampled, sha256 = samples_or_hashes[index]
            if tensors[index].nbytes <= SAMPLED:
                return sampled
            return sha256 or digest(tensors[index], materialize).sha256

        candidates = _shared(by_sample.values())
        contents = dict(zip(candidates, pool.map(content_key, candidates), strict=True))

    for group in by_sample.values():
        firsts: dict[Hashable, int] = {}
        for index in group:
            if index in contents:
                same[index] = firsts.setdefault(contents[index], index)
    return [same[index] for index in same]


def _identity(tensor: ir.TensorProtocol) -> Hashable:
    """Return what two tensors share only where they are the same bytes in the same place."""
    if isinstance(tensor, MappedTensor):
        dims = tuple(tensor.shape.numpy())
        return id(tensor.file), tensor.offset, tensor.dtype, dims
    return id(tensor)


def _shared(groups: Iterable[list[int]]) -> list[int]:
    """Return the members of the groups that have more than one."""
    return [index for group in groups if len(group) > 1 for index in group]
