"""A Dockerfile is read as a builder reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.image.dockerfile import Step, assignments, stages, way

TEXT = """
ARG BASE=debian:12.1-slim
FROM ${BASE} AS one
# said by the way
RUN echo "${HOME}" \\
    && true
ENV A=1 B="two words"
FROM one AS two
ARG VERSION=3
LABEL version="${VERSION}"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text(text.lstrip())
    return path


def test_stages_stand_upon_each_other_and_arguments_are_put_in(tmp_path: Path):
    known = stages(written(tmp_path, TEXT))
    assert [(each.name, each.base) for each in way("two", known)] == [
        ("one", "debian:12.1-slim"),
        ("two", "one"),
    ]
    assert known["two"].steps == [Step("LABEL", 'version="3"')]


def test_what_a_shell_replaces_is_left_to_it(tmp_path: Path):
    (command,) = stages(written(tmp_path, TEXT))["one"].values("RUN")
    assert command.split() == ["echo", '"${HOME}"', "&&", "true"]


def test_several_variables_of_one_line_are_told_apart():
    assert assignments('A=1 B="two words" C=') == {"A": "1", "B": "two words", "C": ""}


def test_a_stage_without_a_name_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="must name its stage"):
        stages(written(tmp_path, "FROM debian:12.1-slim\n"))
