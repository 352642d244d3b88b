"""Operators of networks: matmuls, convolutions, pools, recurrent ones, attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes, UnfitError
from narrowpass_testing.random_models._elements import Array

TABLE = Recipes()


@TABLE.operators("MatMul MatMulInteger")
def _matmul(d: Draft) -> None:
    x = d.take(1, 4)
    k, n = x.shape[-1], d.pick(1, 2, 3, 8, 17, 33)
    batch = d.broadcast(x.shape[:-2]) if d.chance(0.4) else ()
    shape = (k,) if d.chance(0.1) else (*batch, k, n)
    scale = 1.0 if d.schema.name == "MatMulInteger" else 0.5
    d.draw(shape, scale=scale)
    if d.schema.name == "MatMulInteger" and d.chance(0.6):
        d.draw(d.pick((), (1,)))
        if d.chance(0.7):
            d.draw(d.pick((), (1,)) if len(shape) != 2 else d.pick((), (n,)))


@TABLE.operators("Gemm")
def _gemm(d: Draft) -> None:
    x = d.take(2, 2)
    left, right = d.pick(0, 0, 1), d.pick(0, 1)
    m, k = x.shape[::-1] if left else x.shape
    n = d.pick(1, 2, 5, 8, 17)
    d.draw((n, k) if right else (k, n))
    if d.chance(0.6) or d.schema.since_version < 11:
        d.draw(d.pick((n,), (1, n), (m, 1), (m, n), (1,), ()))
    d.set("transA", left)
    d.set("transB", right)
    d.maybe("alpha", 0.5, 1.0, 2.0)
    d.maybe("beta", 0.0, 0.5, 1.0)


@TABLE.operators("Conv ConvInteger ConvTranspose")
def _conv(d: Draft) -> None:
    transposed = d.schema.name == "ConvTranspose"
    x = d.take(3, 5 if d.chance(0.2) else 4, fits=lambda a: a.shape[1] > 0)
    channels, inner = x.shape[1], x.shape[2:]
    group = d.pick(1, 1, channels, *[n for n in range(1, channels + 1) if channels % n == 0])
    strides = [d.pick(1, 1, 2, 3) for _ in inner]
    dilations = [d.pick(1, 1, 1, 2) for _ in inner]
    pads = [d.pick(0, 0, 1, 2) for _ in range(2 * len(inner))]
    kernel = []
    for axis, size in enumerate(inner):
        room = size + pads[axis] + pads[axis + len(inner)]
        fitting = [k for k in (1, 2, 3, 5) if (k - 1) * dilations[axis] + 1 <= room or transposed]
        if not fitting:
            raise UnfitError
        kernel.append(d.pick(*fitting))
        if pads[axis] >= (kernel[-1] - 1) * dilations[axis] + 1:
            pads[axis] = 0
    multiple = d.pick(1, 1, 2, 3)
    if transposed:
        shape = [channels, multiple, *kernel]
    else:
        shape = [multiple * group, channels // group, *kernel]
    integer = d.schema.name == "ConvInteger"
    d.draw(shape, scale=1.0 if integer else 0.4, constant=0.85)
    if integer:
        if d.chance(0.6):
            d.draw(())
            if d.chance(0.5):
                d.draw(d.pick((), (shape[0],)))
    elif d.chance(0.5):
        d.draw([multiple * group])
    d.maybe("kernel_shape", kernel)
    d.set("group", group)
    d.set("strides", strides)
    d.set("dilations", dilations)
    if d.chance(0.25) and set(dilations) == {1}:
        d.set("auto_pad", d.pick("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        d.set("pads", pads)
    if transposed and d.chance(0.4):
        d.set("output_padding", [d.random.randrange(s) for s in strides])


@TABLE.operators("MaxPool AveragePool LpPool")
def _pool(d: Draft) -> None:
    name = d.schema.name
    x = d.take(3, 5 if d.chance(0.2) else 4, fits=lambda a: 0 not in a.shape)
    inner = x.shape[2:]
    kernel = [d.pick(*[k for k in (1, 2, 3) if k <= size]) for size in inner]
    d.set("kernel_shape", kernel)
    strides = [d.pick(1, 2, 3) for _ in inner]
    dilated = d.chance(0.2) and "dilations" in d.schema.attributes
    if dilated:
        fits = [2 if (k - 1) * 2 + 1 <= s else 1 for k, s in zip(kernel, inner, strict=True)]
        d.set("dilations", fits)
    if d.chance(0.2) and not dilated:
        padding = d.pick("SAME_UPPER", "SAME_LOWER", "VALID")
        d.set("auto_pad", padding)
        if padding != "VALID":
            # Beyond the kernel both oracles have negative pads, ONNX's shape inference has none.
            strides = [min(pair) for pair in zip(strides, kernel, strict=True)]
    else:
        d.set("pads", [d.random.randrange(k) for k in kernel + kernel])
    d.set("strides", strides)
    d.maybe("ceil_mode", 0, 1)
    d.maybe("count_include_pad", 0, 1)
    d.maybe("p", 1, 2)
    if name == "MaxPool":
        d.outputs = d.pick(1, 1, 1, 2)
        d.maybe("storage_order", 0)


@TABLE.operators("GlobalAveragePool GlobalMaxPool GlobalLpPool")
def _global_pool(d: Draft) -> None:
    d.take(3, 5, fits=lambda a: 0 not in a.shape)
    d.maybe("p", 1, 2)


@TABLE.operators("RNN GRU LSTM")
def _recurrent(d: Draft) -> None:
    name = d.schema.name
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[name]
    length, batch, width, hidden = d.pick(1, 2, 5), d.pick(1, 2, 3), d.pick(1, 3), d.pick(1, 2, 4)
    direction = d.pick("forward", "forward", "reverse", "bidirectional")
    count = 2 if direction == "bidirectional" else 1
    layout = d.pick(0, 0, 0, 1) if "layout" in d.schema.attributes else 0
    d.draw((batch, length, width) if layout else (length, batch, width), constant=0.1)
    d.draw((count, gates * hidden, width), scale=0.5)
    d.draw((count, gates * hidden, hidden), scale=0.5)
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    optional: list[Callable[[], Array]] = [lambda: d.draw((count, 2 * gates * hidden), scale=0.5)]
    optional += [lambda: d.operand(d.numbers.integers(1, length + 1, batch).astype(np.int32))]
    optional += [lambda: d.draw(state, constant=0.3)]
    if name == "LSTM":
        optional += [lambda: d.draw(state, constant=0.3)]
        optional += [lambda: d.draw((count, 3 * hidden), scale=0.5)]
    for draw in optional:
        if d.chance(0.5):
            draw()
        else:
            d.none()
    d.set("hidden_size", hidden)
    d.set("direction", direction)
    d.set("layout", layout)
    d.maybe("linear_before_reset", 0, 1)
    if d.chance(0.2):
        d.set("clip", 0.7)
    if d.chance(0.2):
        kinds = {"RNN": ["Relu"], "GRU": ["Sigmoid", "Relu"], "LSTM": ["Sigmoid", "Tanh", "Relu"]}
        d.set("activations", kinds[name] * count)
    d.outputs = d.random.randint(1, 3 if name == "LSTM" else 2)


@TABLE.operators("Attention")
def _attention(d: Draft) -> None:
    batch, heads, kv = d.pick(1, 2), d.pick(2, 4), d.pick(1, 2)
    length, total, size = d.pick(1, 2, 5), d.pick(1, 3, 6), d.pick(2, 4, 8)
    heads = max(heads, kv) // kv * kv
    value = d.pick(size, size, 3)
    flat = d.chance(0.3)

    def shape(count: int, steps: int, width: int) -> tuple[int, ...]:
        return (batch, steps, count * width) if flat else (batch, count, steps, width)

    if flat:
        d.set("q_num_heads", heads)
        d.set("kv_num_heads", kv)
    d.draw(shape(heads, length, size), constant=0.05)
    d.draw(shape(kv, total, size), constant=0.05)
    d.draw(shape(kv, total, value), constant=0.05)
    past = d.pick(0, 0, 2)
    if d.chance(0.5):
        full = (length, total + past)
        mask = d.pick(full, (batch, 1, *full), (1, heads, *full))
        if d.chance(0.5):
            d.operand(d.numbers.random(mask) < 0.8)
        else:
            d.draw(mask, constant=0.3)
    elif past:
        d.none()
    if past:
        d.draw((batch, kv, past, size), constant=0.05)
        d.draw((batch, kv, past, value), constant=0.05)
        d.outputs = 3
    d.maybe("is_causal", 0, 1)
    d.maybe("scale", 0.3, 1.0)
    if d.chance(0.2):
        d.set("softcap", 5.0)
    if past and d.chance(0.3):
        d.outputs = 4
        d.maybe("qk_matmul_output_mode", 0, 1, 2, 3)


@TABLE.operators("RotaryEmbedding")
def _rotary(d: Draft) -> None:
    batch, heads, length, size = d.pick(1, 2), d.pick(1, 3), d.pick(1, 4), d.pick(4, 8)
    turned = d.pick(0, 0, size // 2)
    half = (turned or size) // 2
    flat = d.chance(0.3)
    d.draw((batch, length, heads * size) if flat else (batch, heads, length, size), constant=0.1)
    if flat:
        d.set("num_heads", heads)
    if d.chance(0.6):
        d.draw((10, half))
        d.draw((10, half))
        d.operand(d.numbers.integers(0, 10, (batch, length)))
    else:
        d.draw((batch, length, half))
        d.draw((batch, length, half))
    d.maybe("interleaved", 0, 1)
    if turned:
        d.set("rotary_embedding_dim", turned)
        d.set("num_heads", heads)


@TABLE.operators("LinearAttention")
def _linear_attention(d: Draft) -> None:
    batch, heads, length, size = d.pick(1, 2), d.pick(1, 2), d.pick(1, 3), d.pick(2, 4)
    for _ in range(3):
        d.draw((batch, length, heads * size), constant=0.05)
    d.set("q_num_heads", heads)
    d.set("kv_num_heads", heads)
    d.set("update_rule", "linear")
    d.outputs = 2


@TABLE.operators("CausalConvWithState")
def _causal_conv(d: Draft) -> None:
    batch, channels, length, kernel = d.pick(1, 2), d.pick(1, 3), d.pick(1, 4), d.pick(1, 2, 4)
    d.draw((batch, channels, length), constant=0.05)
    d.draw((channels, 1, kernel))
    if d.chance(0.5):
        d.draw((channels,))
    else:
        d.none()
    if d.chance(0.5):
        d.draw((batch, channels, kernel - 1), constant=0.1)
    d.maybe("activation", "none", "silu", "swish")
    d.outputs = 2
