"""Helm's own engine with an API server of its own, which only stores objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.kube.api_server import Store, api_server
from tests.kube.chart import NAMESPACE


@contextmanager
def helm_and_store() -> Iterator[tuple[Any, Store]]:
    """`helm_python.Config`, which installs, upgrades and rolls back, and what it has stored."""
    import helm_python

    with api_server() as (url, store):
        config = helm_python.Config(
            kubeconfig_content=kubeconfig(url), namespace=NAMESPACE, storage_driver="memory"
        )
        try:
            yield config, store
        finally:
            config.close()


def kubeconfig(url: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": {}}],
        }
    )
