"""How each protocol's requests look, and what its answers tell; one file a protocol."""

from __future__ import annotations

from collections.abc import Callable

from loadtests.client.protocols.custom import Custom
from loadtests.client.protocols.open_inference import OpenInference, OpenInferenceBinary
from loadtests.client.protocols.openai import Chat, Completions, Embeddings
from loadtests.client.protocols.types import Endpoint, Wire

PROTOCOLS: dict[str, Callable[[Endpoint], Wire]] = {
    "oip": OpenInference,
    "oip-binary": OpenInferenceBinary,
    "openai-embeddings": Embeddings,
    "openai-completions": Completions,
    "openai-chat": Chat,
    "custom": Custom,
}
