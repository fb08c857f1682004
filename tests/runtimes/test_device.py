"""The option `device`: what it takes, what it becomes, what is said where there is no GPU."""

from __future__ import annotations

import pytest

from runtimes.device import CPU, Device, check, chosen
from runtimes.errors import MissingBackend


@pytest.mark.parametrize("text", ["cpu", "cuda", "cuda:0", "cuda:12", "auto"])
def test_known_devices_are_taken(text):
    check(text)


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "CUDA", "cuda:1234", ""])
def test_other_words_are_told_what_is_right(text):
    with pytest.raises(ValueError, match="it takes cpu, cuda, cuda:N or auto"):
        check(text)


def test_auto_takes_the_first_gpu_or_the_processors():
    assert chosen("auto", 0, "torch") == CPU
    assert chosen("auto", 2, "torch") == Device("cuda", 0)


def test_number_picks_the_gpu():
    assert str(chosen("cuda:1", 2, "torch")) == "cuda:1"
    assert str(chosen("cuda", 2, "torch")) == "cuda:0"
    assert str(chosen("cpu", 2, "torch")) == "cpu"


def test_missing_gpu_is_said_with_the_way_out():
    with pytest.raises(MissingBackend, match=r"torch sees no CUDA GPU.* set device to cpu"):
        chosen("cuda", 0, "torch")


@pytest.mark.parametrize(("gpus", "seen"), [(1, "cuda:0 alone"), (2, "cuda:0 to cuda:1")])
def test_number_beyond_the_gpus_is_told_which_there_are(gpus, seen):
    with pytest.raises(MissingBackend, match=f"torch sees {seen}"):
        chosen("cuda:2", gpus, "torch")
