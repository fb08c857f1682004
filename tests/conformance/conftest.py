"""Fixtures of the conformance suite: tiny models, a cache folder, and each backend running.

The folder is put on the import path, for the suite's own modules: tests are no packages here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import fake_tensorrt
from runtime_cases import Sources, settings
from tiny_models import BUILDERS

from runtimes import catalog
from runtimes.cuda import VisibleGpu
from runtimes.errors import MissingBackend
from runtimes.types import Runtime


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of a tiny model by name, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("models"), dict[str, Path]()

    def source(name: str) -> Path:
        if name not in made:
            made[name] = BUILDERS[name](folder / name)
        return made[name]

    return source


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tensorrt_stand_in() -> Iterator[None]:
    """TensorRT's names and a device's memory without either."""
    from runtimes.tensorrt import runtime as tensorrt_runtime

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorrt", fake_tensorrt.library())
        patch.setattr(tensorrt_runtime, "gpus", lambda: (VisibleGpu("none", "9.0", "0"),))
        patch.setattr(tensorrt_runtime, "CudaMemory", fake_tensorrt.Memory)
        yield


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, sources: Sources, cache: Path) -> Iterator[Runtime]:
    """The case's backend, loaded and warm, shared by the tests that leave it as they found it."""
    if request.param.fake:
        request.getfixturevalue("tensorrt_stand_in")
    runtime = catalog.create(settings(request.param, sources, cache))
    try:
        runtime.load()
    except MissingBackend as missing:
        pytest.skip(f"{missing} (unverified here: docs/runtimes.md)")
    runtime.warm()
    yield runtime
    runtime.close()
