"""The two environment variables that say where a peer finds the model."""

from __future__ import annotations

MODEL = "PEER_MODEL"  # the folder with model.xml that Headrace has staged
TOKENIZER = "PEER_TOKENIZER"  # tokenizer.json in the model's own folder
