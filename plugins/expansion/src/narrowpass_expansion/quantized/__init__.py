"""Quantized operators of com.microsoft."""
