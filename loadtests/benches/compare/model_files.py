"""Where is the model that peers embed with? Headrace's own staged graph, so that all run the same.

Staged by starting Headrace once where no earlier start has left it under `out/bench/home`.
"""

from __future__ import annotations

from pathlib import Path

from loadtests.benches.reference_embeddings import model_folder
from loadtests.benches.server import HOME_DIR, Settings, headrace
from loadtests.peers.minilm_files import MODEL, TOKENIZER


def model_environ(settings: Settings) -> dict[str, str]:
    if not staged():
        with headrace(settings, name="staging"):
            pass
    return {
        MODEL: str(staged()[-1].absolute()),
        TOKENIZER: str(model_folder() / "tokenizer.json"),
    }


def staged() -> list[Path]:
    """Folders with a graph, the newest last."""
    files = HOME_DIR.glob("cache/headrace/staged/*/model.xml")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime)]
