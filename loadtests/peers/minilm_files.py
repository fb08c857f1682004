"""Where does a peer find the model? What its environment has to name, in two variables."""

from __future__ import annotations

MODEL = "PEER_MODEL"  # the folder with model.xml that Headrace has staged
TOKENIZER = "PEER_TOKENIZER"  # tokenizer.json in the model's own folder
