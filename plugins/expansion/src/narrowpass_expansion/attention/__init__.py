"""Attention operators of ONNX and com.microsoft, rotary embeddings and KV caches."""
