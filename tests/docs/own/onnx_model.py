"""A model, data and a program of the reader's own, for pages that begin where one has them."""

from pathlib import Path

import numpy as np
import onnx

x = np.random.default_rng(0).standard_normal((4, 16), np.float32)
samples = [{"x": x}]
np.save("x.npy", x)
Path("data").mkdir()
np.savez("data/0.npz", x=x)
model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 16] x) => (float[n, 8] y) { y = MatMul(x, w) }""")
model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 8), np.float32), "w"))
onnx.save(model, "model.onnx")
Path("program.py").write_text(
    "import numpy, onnxruntime\n"
    "session = onnxruntime.InferenceSession('model.onnx')\n"
    "assert session.get_providers()[0] == 'NarrowpassExecutionProvider'\n"
    "session.run(None, {'x': numpy.load('x.npy')})\n"
)
