"""Operators on signals."""

from __future__ import annotations

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes

TABLE = Recipes()


@TABLE.operators("HannWindow HammingWindow BlackmanWindow")
def _taper(d: Draft) -> None:
    d.ints(d.pick(2, 5, 8))
    d.maybe("periodic", 0, 1)
    d.maybe("output_datatype", 1)


@TABLE.operators("DFT")
def _dft(d: Draft) -> None:
    length, complex_ = d.pick(4, 5, 8), d.pick(1, 2)
    d.draw((d.pick(1, 2), length, complex_), constant=0.1)
    if d.chance(0.3):
        d.ints(d.pick(4, 6))
    elif d.has_input(2):
        d.none()
    if d.has_input(2):
        d.ints(1)
    else:
        d.set("axis", 1)
    if complex_ == 1:
        d.maybe("onesided", 0, 1)
    else:
        d.maybe("inverse", 0, 1)


@TABLE.operators("STFT")
def _stft(d: Draft) -> None:
    x = d.draw((d.pick(1, 2), 16, 1), constant=0.1)
    d.ints(d.pick(2, 4))
    d.operand(np.hanning(8).astype(x.dtype) + np.asarray(0.1, x.dtype))
    if d.chance(0.5):
        d.ints(8)
    d.maybe("onesided", 0, 1)
