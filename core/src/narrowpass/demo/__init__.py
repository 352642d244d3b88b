"""The main job on a small real model: build a digit classifier, run it, and measure.

The model and the images, which it was not trained on, are part of the package; `train_digits.py`
made both.
"""

from __future__ import annotations

from narrowpass.demo._demo import Result, Row, load_images, run_demo

__all__ = ["Result", "Row", "load_images", "run_demo"]
