"""`k8s/base` is the chart, rendered: `python -m tests.kube.kustomize_base` writes it anew."""

from __future__ import annotations

from pathlib import Path

from tests.kube.chart import ROOT, rendered, values_of

BASE = ROOT / "k8s" / "base"
_FILES = ("rayservice.yaml", "networkpolicies.yaml", "serviceaccount.yaml")
_HELMS = ("app.kubernetes.io/managed-by", "helm.sh/chart", 'namespace: "serving"')
_WRITTEN = (
    "# Written by `python -m tests.kube.kustomize_base` from helm/headrace and values.yaml here.\n"
)


def base() -> dict[Path, str]:
    """What ought to stand in each file."""
    texts = rendered(values_of((BASE / "values.yaml").read_text()), name="headrace")
    return {BASE / name: _WRITTEN + _without_helms(texts[name]) for name in _FILES}


def _without_helms(text: str) -> str:
    """A kustomization gives the namespace, and nothing is Helm's."""
    lines = (line for line in text.strip().splitlines() if not line.strip().startswith(_HELMS))
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    for path, text in base().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
