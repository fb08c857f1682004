"""`python -m deployments.tools.chart`: rewrites the Helm chart's generated files."""

from __future__ import annotations

from deployments.tools.chart.chart_files import CHART, generated

if __name__ == "__main__":
    for path, text in generated().items():
        (CHART / path).parent.mkdir(exist_ok=True)
        (CHART / path).write_text(text)
        print(path)
