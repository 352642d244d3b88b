"""Calibration data: samples that passes run a model on, histograms that their reports keep."""
