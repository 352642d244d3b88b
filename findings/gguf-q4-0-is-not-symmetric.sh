#!/usr/bin/env bash
# GGUF's Q4_0 keeps the largest element of a block, and may lose its mirror image by an eighth.
#
# One would guess that a block of symmetric 4-bit weights has the range of -7 to 7, or that -8 is
# for negative numbers. The scale takes the sign of the largest element, divided by -8: that one
# is exact, and the other end of the range is 7/8 of it. Scales are negative as often as not.
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

kind = gguf.GGMLQuantizationType.Q4_0
print("gguf", importlib.metadata.version("gguf"))
for largest in (1.0, -1.0):
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = largest, -0.999 * largest
    block = gguf.quants.quantize(x, kind)
    scale = block[0, :2].copy().view(np.float16).item()
    found = gguf.quants.dequantize(block, kind)[0, :2].tolist()
    print(x[0, :2].tolist(), "becomes", found, "with a scale of", scale)
    assert found == [largest, -0.875 * largest]
    assert scale == -largest / 8
PYTHON
