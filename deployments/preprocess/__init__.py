"""Texts and images to tensors: tokenizers, decoding, resizing."""
