"""Fixtures of `verified_models`."""

from verified_models import own_cache, settings_file, tokens_onnx

__all__ = ["own_cache", "settings_file", "tokens_onnx"]
