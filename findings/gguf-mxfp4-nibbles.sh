#!/usr/bin/env bash
# The nibbles of a GGUF block of MXFP4 are not neighbours.
#
# One would guess that byte j of a block has elements 2j and 2j + 1, as most packings of 4 bits
# have it. Its low nibble is element j, and its high one element j + 16, as in GGUF's other blocks
# of 32. Both orders give plausible weights.
#
# Seen with gguf 0.19.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q gguf==0.19.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import importlib.metadata

import gguf
import numpy as np

block = np.zeros((1, 17), np.uint8)
block[0, 0] = 127  # the exponent
block[0, 1] = 0x21  # byte 0: codes 1 and 2
found = gguf.quants.dequantize(block, gguf.GGMLQuantizationType.MXFP4)[0]
places = np.flatnonzero(found)
print("gguf", importlib.metadata.version("gguf"))
print("byte 0 has the elements", dict(zip(places.tolist(), found[places].tolist())))
assert places.tolist() == [0, 16]
assert found[16] == 2 * found[0]
PYTHON
