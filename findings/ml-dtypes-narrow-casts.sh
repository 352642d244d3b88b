#!/usr/bin/env bash
# NaN becomes -0 in the float4 of ml_dtypes, and infinity becomes NaN in its float8.
#
# One would guess that NaN stays visible, and that what is too large saturates or stays infinite.
# float4 (E2M1) has neither NaN nor infinity: NaN becomes -0, and infinity 6, its largest number.
# float8 (E4M3FN) has NaN alone: infinity and everything from 465 on become NaN where ONNX's Cast
# saturates to 448. int4 wraps: 8 becomes -8.
#
# Seen with ml_dtypes 0.5.4.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q ml-dtypes==0.5.4 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import warnings

import ml_dtypes
import numpy as np

warnings.simplefilter("ignore")
four = np.float32([np.nan, np.inf, 100]).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
eight = np.float32([448, 465, np.inf]).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
integers = np.int32([7, 8, 9]).astype(ml_dtypes.int4).astype(np.int32)
print("ml_dtypes", ml_dtypes.__version__)
print("NaN, infinity and 100 in float4:", four.tolist())
print("448, 465 and infinity in float8 (E4M3FN):", eight.tolist())
print("7, 8 and 9 in int4:", integers.tolist())
assert four.tolist() == [0, 6, 6]
assert eight[0] == 448 and np.isnan(eight[1:]).all()
assert integers.tolist() == [7, -8, -7]
PYTHON
