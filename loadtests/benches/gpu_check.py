"""Checks all backends on this machine's GPU; most of this cannot run on machines without one.

`make gpu-check` (`python -m loadtests.benches.gpu_check`) runs the conformance suite over all
backends, then `headrace verify` and `headrace profile` for MiniLM in each GPU mode of each backend.
It writes to `out/gpu-check`, as JSON and as Markdown: the GPU, the driver, versions, and for each
step whether it passed, was skipped, failed or lacks a package, and how long it took.

Exit codes: 1 if a step failed, was not verified or lacks a package; 2 if there is no NVIDIA GPU and
`--without-gpu` is not given. That option tries the check itself, on any machine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from loadtests.benches.server import changed, example
from loadtests.results.report_table import this_machine

OUT = Path("out/gpu-check")
PACKAGES = (
    "torch", "onnxruntime", "onnxruntime-gpu", "tensorrt", "cuda-python", "openvino", "numpy",
)  # fmt: skip
QUERY = ("name", "driver_version", "memory.total", "compute_cap", "mig.mode.current")


def way(
    runtime: str, precision: str = "fp32", cosine: float | None = None, **options: Any
) -> dict[str, Any]:
    """Changes to a model's settings. `cosine`: least, of a row's embedding with that in fp32."""
    found: dict[str, Any] = {"runtime": runtime, "options": {"device": "cuda", **options}}
    if cosine is not None:
        found |= {"precision": precision, "accept": {"cosine": cosine}}
    return found


GPU_MODES: Mapping[str, Mapping[str, Any]] = {
    "torch eager": way("torch"),
    "torch unpinned": way("torch", pinned=False),
    "torch compile": way("torch", mode="compile"),
    "torch cuda_graphs": way("torch", mode="cuda_graphs"),
    "torch cuda_graphs fp16": way("torch", "fp16", 0.9999, mode="cuda_graphs"),
    "torch bf16": way("torch", "bf16", 0.999),
    "torch int8": way("torch", "int8", 0.985),  # 0.98986 on processors, with the same scales
    "onnxruntime cuda": way("onnxruntime"),
    "onnxruntime cuda fp16": way("onnxruntime", "fp16", 0.9999),
    "onnxruntime tensorrt": way("onnxruntime", tensorrt_engines=True),
    "tensorrt fp16": {**way("tensorrt", "fp16", 0.9999), "options": {}},
}
UNVERIFIED = "unverified here"  # in the suite's reason for skipping a backend without its hardware
SUITE = ("tests/conformance", "tests/runtimes")
# Messages of commands when a backend is not installed, or not in a build for GPUs.
NOT_HERE = (
    "runtime needs its package", "sees no CUDA GPU", "sees no TensorRT",
    "could not start TensorrtExecutionProvider",
)  # fmt: skip
TAIL = 1500  # characters that are kept of a failed command's output
LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the check."""

    name: str
    # passed; failed; missing (a command or backend is not installed); or incomplete (tests that
    # need the GPU were skipped)
    outcome: str
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)  # of tests, by outcome
    said: str = ""  # the reason, if the step did not pass


def gpus(text: str) -> list[dict[str, str]]:
    """Parses `nvidia-smi --query-gpu … --format=csv,noheader`: a dict for each line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [
        dict(zip(QUERY, (cell.strip() for cell in line.split(",")), strict=False)) for line in lines
    ]


def seen_gpus() -> list[dict[str, str]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return gpus(done.stdout) if done.returncode == 0 else []


def versions(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def suite_step(report: Path, seconds: float, code: int, said: str) -> Step:
    """The suite's step, from pytest's report. Tests skipped as UNVERIFIED make it incomplete."""
    if not report.is_file():
        return Step("conformance", "failed", seconds, said=said[-TAIL:])
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        broken = case.find("failure") is not None or case.find("error") is not None
        counts["failed" if broken else "passed" if skipped is None else "skipped"] += 1
        if skipped is not None:
            reasons[skipped.get("message", "")] += 1
    why = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    unverified = any(UNVERIFIED in reason for reason in reasons)
    outcome = "failed" if code else "incomplete" if unverified else "passed"
    return Step("conformance", outcome, seconds, dict(counts), why)


def command_step(name: str, command: Sequence[str], result: Path | None = None) -> Step:
    """Runs a command as a step. `result`: the file for its output."""
    begin = time.perf_counter()
    code, said = ran(command)
    seconds = time.perf_counter() - begin
    if "No such command" in said:
        return Step(name, "missing", seconds, said=f"this version has no `headrace {command[3]}`")
    if code and any(words in said for words in NOT_HERE):
        return Step(name, "missing", seconds, said=said[-TAIL:])
    if result is not None and not code:
        result.write_text(said)
    return Step(name, "failed" if code else "passed", seconds, said=said[-TAIL:] if code else "")


def ran(command: Sequence[str]) -> tuple[int, str]:
    """Runs a command; its exit code and its output, both streams together."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return 124, f"it took longer than {LONGEST_S:.0f} s: {late.stdout!r}"
    return done.returncode, done.stdout


def steps(out: Path, ways: Mapping[str, Mapping[str, Any]]) -> Iterable[Step]:
    """Runs the steps one after another and yields each; the caller prints them."""
    report = out / "conformance.xml"
    report.unlink(missing_ok=True)
    begin = time.perf_counter()
    code, said = ran([sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *SUITE])
    yield suite_step(report, time.perf_counter() - begin, code, said)
    for name, way in ways.items():
        file = settings_file(out, name, way)
        for verb in ("verify", "profile"):
            result = out / f"{slug(name)}-{verb}.json"
            command = [sys.executable, "-m", "deployments.cli", verb, str(file), "minilm"]
            command += ["--json"] if verb == "verify" else ["--dry-run", "--json"]
            yield command_step(f"{verb}: {name}", command, result)


def settings_file(out: Path, name: str, way: Mapping[str, Any]) -> Path:
    changes = {f"models.minilm.{key}": value for key, value in way.items()}
    file = out / f"{slug(name)}.yaml"
    file.write_text(yaml.safe_dump(changed(example("minilm"), changes)))
    return file


def slug(name: str) -> str:
    return name.replace(" ", "-").replace("_", "-")


def page(record: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    lines = [f"# What works on this machine's GPU ({record['date']})", "", record["machine"], ""]
    lines += [", ".join(gpu.values()) for gpu in record["gpus"]] or ["No NVIDIA GPU."]
    lines += ["", ", ".join(f"{name} {version}" for name, version in record["versions"].items())]
    lines += ["", "| step | outcome | s | tests | what it said |", "|---|---|---:|---|---|"]
    for step in record["steps"]:
        counts = ", ".join(f"{count} {what}" for what, count in step["counts"].items())
        said = " ".join(step["said"].split()).replace("|", "\\|")
        cells = (step["name"], step["outcome"], f"{step['seconds']:.1f}", counts, said)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.gpu_check", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder (%(default)s)")
    parser.add_argument("--ways", default=",".join(GPU_MODES), help="some of: %(default)s")
    parser.add_argument("--without-gpu", action="store_true", help="try the check itself")
    asked = parser.parse_args(argv)
    names = [name.strip() for name in asked.ways.split(",") if name.strip()]
    unknown = [name for name in names if name not in GPU_MODES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(GPU_MODES)}")
    found = seen_gpus()
    if not found and not asked.without_gpu:
        print("no NVIDIA GPU here: nvidia-smi shows none; nothing was checked", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    taken = []
    for step in steps(asked.out, {name: GPU_MODES[name] for name in names}):
        print(f"{step.outcome:10} {step.seconds:7.1f} s  {step.name}", flush=True)
        taken.append(step)
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": this_machine(),
        "gpus": found,
        "versions": versions(),
        "steps": [asdict(step) for step in taken],
    }
    (asked.out / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    (asked.out / "record.md").write_text(page(record))
    print(f"written to {asked.out}/record.json and record.md")
    return 0 if all(step.outcome == "passed" for step in taken) else 1


if __name__ == "__main__":
    sys.exit(main())
