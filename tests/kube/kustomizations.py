"""The objects in the folders of `k8s/` are the chart, rendered from the values there:
`python -m tests.kube.kustomizations` writes them anew."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.kube.chart import ROOT, Values, rendered, values_of

FOLDERS = sorted(path for path in (ROOT / "k8s").iterdir() if path.is_dir())
_FILES = ("rayservice.yaml", "networkpolicies.yaml", "serviceaccount.yaml")
_HELMS = ("app.kubernetes.io/managed-by", "helm.sh/chart", 'namespace: "serving"')
_WRITTEN = (
    "# Written by `python -m tests.kube.kustomizations` from helm/headrace, settings.yaml and "
    "pods.yaml.\n"
)


def values(folder: Path) -> Values:
    """The chart's, of a settings file and what pods it is to run in."""
    texts = [(folder / name).read_text() for name in ("settings.yaml", "pods.yaml")]
    assert not set.intersection(*(set(yaml.safe_load(text)) for text in texts))
    return values_of("\n".join(texts))


def written(folder: Path) -> dict[Path, str]:
    """What ought to stand in each file."""
    texts = rendered(values(folder), name="headrace")
    return {folder / name: _WRITTEN + _without_helms(texts[name]) for name in _FILES}


def _without_helms(text: str) -> str:
    """A kustomization gives the namespace, and nothing is Helm's."""
    lines = (line for line in text.strip().splitlines() if not line.strip().startswith(_HELMS))
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    for folder in FOLDERS:
        for path, text in written(folder).items():
            path.write_text(text)
            print(path.relative_to(ROOT))
