"""A settings file's bytes to a document: what keeps a file from being read at all.

The document's data is a mapping; mistakes inside it are kept in the document, so that they can be
told together with those of the settings.
"""

from __future__ import annotations

from pathlib import Path

from deployments.settings.lines import Document, read_document
from deployments.settings.mistakes import Mistake, SettingsErrors

MOST_BYTES = 16 * 1024 * 1024


def read_file(path: Path | str) -> Document:
    """A document whose data is a mapping. Raises SettingsErrors where the file holds none."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            body = stream.read(MOST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsErrors([Mistake(file, 0, "", f"cannot be read: {reason}")]) from None
    if len(body) > MOST_BYTES:
        raise SettingsErrors([Mistake(file, 0, "", f"is larger than {MOST_BYTES} bytes")])
    document = read_document(_text(body, file), file)
    if document.data is None and not document.mistakes:
        raise SettingsErrors([Mistake(file, 0, "", "is empty; must have models:")])
    if not isinstance(document.data, dict):
        top = document.mistake((), "must be a mapping that has models:")
        raise SettingsErrors(document.mistakes or [top])
    return document


def _text(body: bytes, file: str) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise SettingsErrors(
            [Mistake(file, line, "", f"byte {error.start} is no UTF-8; save the file as UTF-8")]
        ) from None
