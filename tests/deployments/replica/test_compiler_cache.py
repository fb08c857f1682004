"""Compilers keep what they made in the cache folder, unless somebody chose another."""

from __future__ import annotations

import os
from pathlib import Path

from deployments.replica import compiler_cache

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def test_cache_folder_is_told_to_the_compiler(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    compiler_cache.keep_in(Path("/cache"))
    assert os.environ[VARIABLE] == "/cache/torch-compiled"


def test_folder_that_was_chosen_stays(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/mine")
    compiler_cache.keep_in(Path("/cache"))
    assert os.environ[VARIABLE] == "/mine"
