#!/usr/bin/env bash
# onnxruntime's entropy calibrator returns the extremes of the data.
#
# One would guess that calibration by entropy clips an outlier: that is what it is chosen for. Of
# 4,096 normally distributed numbers, none beyond 4, and one of 60 the range ends at 60, just as
# `MinMax` has it, so that all others share an eighth of the steps of 8 bits. `Percentile` at its
# default of 99.999 ends at 59.97.
#
# Seen with onnxruntime 1.32.0.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
venv/bin/python - <<'PYTHON'
import contextlib
import io

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import create_calibrator

x = np.random.default_rng(0).standard_normal((512, 8)).astype(np.float32)
x[0, 0] = 60
others = np.abs(x.ravel()[1:]).max()


class Samples(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": x}]

    def get_next(self):
        return self.left.pop() if self.left else None


text = '<ir_version: 10, opset_import: ["": 21]> g (float[N,8] x) => (float[N,8] y) {y = Add(x, x)}'
onnx.save(onnx.parser.parse_model(text), "m.onnx")
print("onnxruntime", onnxruntime.__version__, "one element of 60, others up to", others)
for method in (CalibrationMethod.MinMax, CalibrationMethod.Entropy):
    calibrator = create_calibrator("m.onnx", None, calibrate_method=method)
    calibrator.set_execution_providers()
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator.collect_data(Samples())
        high = float(np.max(calibrator.compute_data()["x"].range_value[1]))
    print(method, "ends at", high)
    assert high == 60
assert others < 5
PYTHON
