"""A causal language model on OpenVINO, whose attention reads several sequences' blocks at once.

transformers writes the folder's graph once a host (`export`, in a process of its own). OpenVINO
turns its attention into paged attention: tokens of all sequences stand in one row, and each
sequence's keys and values lie in blocks of a common store, which is numpy's here. Only the rows
whose numbers are wanted go through the last layer. What `export` notes of transformers' own numbers
is compared when the model is loaded. Source: OpenVINO's SDPAToPagedAttention, and the pipeline of
openvino.genai, which does the same in C++.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtimes.errors import LoadError, RunError
from runtimes.generation import engine
from runtimes.generation.engine import Part
from runtimes.openvino.model import library

MODEL, NUMBERS = "model.xml", "numbers.npy"
_TOLERANCE = 1e-3  # of the largest number
_BLOCK = 32  # tokens; OpenVINO's for processors
_ROWS = "rows"


def export(folder: Path, out: Path) -> None:
    """Writes the graph and the numbers that it is compared by. For a process of its own."""
    import openvino
    from transformers import AutoModelForCausalLM, DynamicCache

    module = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, local_files_only=True, trust_remote_code=False,
        use_safetensors=True,
    ).eval()  # fmt: skip
    drawn = torch.from_numpy(engine.tried(module.get_output_embeddings().weight.shape[0]))
    past = DynamicCache(config=module.config)
    with torch.no_grad():
        numbers = module(drawn, use_cache=False).logits[:, -1]
        module(drawn[:, :10], past_key_values=past, use_cache=True)
    inputs = {
        "input_ids": drawn[:, 10:13],
        "attention_mask": torch.ones(2, 13, dtype=torch.int64),
        "position_ids": torch.arange(10, 13).repeat(2, 1),
        "past_key_values": past,
    }
    exporters = importlib.import_module("transformers.exporters")
    how = exporters.OpenVINOConfig(dynamic=True)
    model, _ = exporters.OpenVINOExporter().export_program(module, inputs, how)
    openvino.save_model(model, str(out / MODEL), compress_to_fp16=False)
    np.save(out / NUMBERS, numbers.numpy())


class Blocks:
    """Of one sequence: which blocks of the store hold its tokens. They are free again once nobody
    knows of it."""

    def __init__(self, free: list[int]) -> None:
        self.numbers: list[int] = []
        self.begins: tuple[Blocks, int] | None = None
        self._free = free
        weakref.finalize(self, _give_back, free, self.numbers)

    def begin_with(self, source: Blocks, tokens: int) -> None:
        """The first so many are those of another sequence. They are copied with the next step."""
        self.begins = source, tokens

    def cut(self, tokens: int) -> None:
        """Only the first so many matter. The blocks of the others are free."""
        blocks = -(-tokens // _BLOCK)
        _give_back(self._free, self.numbers[blocks:])
        del self.numbers[blocks:]

    def extend(self, tokens: int) -> None:
        """To as many blocks as so many tokens take."""
        while len(self.numbers) * _BLOCK < tokens:
            if not self._free:
                raise RunError("the cache has no block left")
            self.numbers.append(self._free.pop())


def _give_back(free: list[int], numbers: list[int]) -> None:
    free.extend(numbers)


class PagedModel:
    """A compiled model. `places`: tokens that its store holds, besides the ends of `sequences`
    blocks that are not full."""

    def __init__(self, compiled: Any, places: int, sequences: int) -> None:
        self._request = compiled.create_infer_request()
        self.vocabulary = int(compiled.outputs[0].partial_shape[-1].get_length())
        blocks = -(-places // _BLOCK) + sequences
        self._free = list(range(blocks))
        self._stores: dict[str, np.ndarray[Any, Any]] = {}  # by input
        for port in compiled.inputs:
            if "_cache." in port.any_name:
                shape = [blocks, *(size.get_length() for size in list(port.partial_shape)[1:])]
                self._set_store(port.any_name, shape)

    def _set_store(self, name: str, shape: Sequence[int]) -> None:
        self._stores[name] = np.zeros(shape, np.float32)  # system memory when written to
        held = library().Tensor(self._stores[name], shared_memory=True)
        self._request.set_tensor(name, held)

    def cache_bytes(self, places: int) -> int:
        """It was made for so many."""
        return sum(store.nbytes for store in self._stores.values())

    def restore(self) -> None:
        """Nothing was taken away but the caches."""

    def release(self, weights: bool) -> None:
        for name, store in self._stores.items():
            self._set_store(name, store.shape)

    def cache(self) -> Blocks:
        return Blocks(self._free)

    def step(self, parts: Sequence[Part]) -> torch.Tensor:
        """float32 [wanted parts, vocabulary]."""
        counts = [len(part.ids) for part in parts]
        for part, count in zip(parts, counts, strict=True):
            self._settle(part.cache)
            part.cache.extend(part.at + count)
        blocks = [
            part.cache.numbers[: -(-(part.at + count) // _BLOCK)]
            for part, count in zip(parts, counts, strict=True)
        ]
        ends = np.cumsum([0, *counts])
        wanted = [int(end) - 1 for end, part in zip(ends[1:], parts, strict=True) if part.wanted]
        places = [np.arange(part.at, part.at + len(part.ids)) for part in parts]
        fields = {
            "input_ids": np.concatenate([part.ids for part in parts]),
            "position_ids": np.concatenate(places),
            "past_lens": np.asarray([part.at for part in parts], np.int32),
            "subsequence_begins": ends.astype(np.int32),
            "block_indices": np.asarray([b for each in blocks for b in each], np.int32),
            "block_indices_begins": np.cumsum([0, *map(len, blocks)]).astype(np.int32),
            "max_context_len": np.asarray(max(p[-1] for p in places) + 1, np.int32),
            _ROWS: np.asarray(wanted or [0], np.int64),
        }
        for name, array in fields.items():
            self._request.set_tensor(name, library().Tensor(array))
        self._request.infer()
        found = self._request.get_output_tensor(0).data
        made = np.array(found, dtype=np.float32).reshape(-1, self.vocabulary)
        return torch.from_numpy(made[: len(wanted)])

    def _settle(self, cache: Blocks) -> None:
        if cache.begins is None:
            return
        source, tokens = cache.begins
        self._settle(source)
        cache.begins = None
        cache.extend(tokens)
        count = -(-tokens // _BLOCK)
        for store in self._stores.values():
            store[cache.numbers[:count]] = store[source.numbers[:count]]


def opened(entry: Path, threads: int, places: int, sequences: int) -> PagedModel:
    """What `export` wrote, checked. Raises `LoadError`."""
    core = library().Core()
    try:
        model = core.read_model(str(entry / MODEL))
        passes = importlib.import_module("openvino._offline_transformations")
        passes.paged_attention_transformation(model)
        _only_wanted(model)
        compiled = core.compile_model(
            model,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "KV_CACHE_PRECISION": "f32",
                "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
                "ENABLE_CPU_PINNING": False,
            },
        )
        made = PagedModel(compiled, places, sequences)
    except Exception as error:  # the library's
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise LoadError(
            f"OpenVINO cannot run this model: {words[-1]}; use runtime torch"
        ) from error
    own = torch.from_numpy(np.load(entry / NUMBERS))
    engine.check(made, engine.tried(made.vocabulary), own, "its graph", _TOLERANCE)
    return made


def _only_wanted(model: Any) -> None:
    """The last layer's product gets the rows of a new input alone."""
    operators = importlib.import_module("openvino.opset13")
    node = model.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    rows = operators.parameter([-1], np.int64, name=_ROWS)
    rows.output(0).set_names({_ROWS})
    picked = operators.gather(node.input_value(0), rows, operators.constant(0, np.int64))
    node.input(0).replace_source_output(picked.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
