"""Attention, rotary embedding and KV caches."""
