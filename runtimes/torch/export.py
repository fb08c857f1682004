"""The process that exports a folder; `runtimes.exporting` runs it.

One line of JSON comes on standard input (`Order`). On standard output go lines of JSON: a step and
how far it is, or what was wrong. The ONNX file is written with its weights beside it. It ends when
whoever ordered it does, and connects to nothing.

Source: torch's documentation of `torch.onnx.export(dynamo=True)`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

OPSET = 20
FAR = -65504.0  # the lowest finite float16; added to scores of padding, whose share is then 0
FUSED = "headrace"  # a name for our attention among those of transformers
# Of transformers' attention, what the operator has no place for.
NOT_FUSED = ("softcap", "position_bias", "s_aux")
EXAMPLE = (2, 7)  # rows and length; neither is 1, which torch would take for a fixed size


def main() -> None:
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_caller, daemon=True).start()
    sys.addaudithook(_no_connections)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers)

    try:
        _export(order, say)
    except Exception as error:  # torch's exporter raises many types, and the caller reads words
        say(error=_words(error))
        sys.exit(1)


def _export(order: dict[str, Any], say: Any) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    say(step="loading", done=0.05)
    import torch

    torch.set_num_threads(order["threads"])
    folder = Path(order["folder"])
    if order["task"] == "generate":
        from runtimes.openvino import causal

        say(step="exporting", done=0.3)
        causal.export(folder, Path(order["out"]))
        return
    from runtimes.folder import pooling_of
    from runtimes.torch import towers

    pooling = pooling_of(folder, order["pooling"], order["normalize"])
    encoder = towers.opened(folder, order["task"], pooling, images=order["images"])
    if not order["standard"]:
        _fuse_attention(encoder.network)
    say(step="exporting", done=0.3)
    examples = towers.examples(encoder, *EXAMPLE)
    sizes = [{0, *(axis for axis in (1,) if spec.shape[axis] == -1)} for spec in encoder.specs]
    with torch.inference_mode(False), torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
        names = list(encoder(*examples))
        program = torch.onnx.export(
            encoder,
            examples,
            dynamo=True,
            dynamic_shapes=(
                tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in sizes),
            ),
            opset_version=OPSET,
            input_names=list(encoder.inputs),
            output_names=names,
            verbose=False,
        )
    assert program is not None
    say(step="writing", done=0.8)
    program.save(str(Path(order["out"]) / "model.onnx"), external_data=True)
    say(step="written", done=1.0)


def _fuse_attention(network: Any) -> None:
    """Attention becomes one operator of ONNX Runtime's own, which OpenVINO reads too: neither knows
    it in what torch writes of itself. Families with an attention of their own keep that."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    from transformers.integrations import sdpa_attention

    def mask(*, mask_function: Any, attention_mask: Any, **how: Any) -> Any:
        """Which tokens count: [rows, length], or [rows, 1, length, length] where that differs by
        token."""
        if mask_function is masking_utils.bidirectional_mask_function:
            return attention_mask
        how |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return masking_utils.sdpa_mask(
            mask_function=mask_function, attention_mask=attention_mask, **how
        )

    def attention(
        module: Any, query: Any, key: Any, value: Any, counts: Any, scaling: Any = None, **more: Any
    ) -> tuple[Any, None]:
        """Of [rows, heads, length, width] each, [rows, length, heads, width]."""
        if lost := [name for name in NOT_FUSED if more.get(name) is not None]:
            raise NotImplementedError(f"attention with {', '.join(lost)} is not exported")
        rows, heads, length, width = query.shape
        shared = heads // key.shape[1]
        key, value = (sdpa_attention.repeat_kv(each, shared) for each in (key, value))
        parts = [each.transpose(1, 2).reshape(rows, length, -1) for each in (query, key, value)]
        padding = bias = None  # as of images, all of whose patches count
        if counts is not None and counts.dim() == 2:
            padding = counts.to(torch.int32)
        elif counts is not None:
            bias = torch.where(counts, 0.0, FAR)
        mixed = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            (*parts, None, padding, bias),
            {"num_heads": heads, "scale": scaling or width**-0.5},
            dtype=query.dtype,
            shape=parts[2].shape,
            version=1,
        )
        return mixed.reshape(rows, length, heads, -1), None

    AttentionInterface.register(FUSED, attention)
    AttentionMaskInterface.register(FUSED, mask)
    if network.config._attn_implementation == "sdpa":
        network.set_attn_implementation(FUSED)


def _no_connections(event: str, _: Any) -> None:
    if event == "socket.connect":
        raise PermissionError("an export connects to nothing")


def _words(error: BaseException) -> str:
    """The innermost cause: torch wraps what went wrong in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:600]


def _end_with_caller() -> None:
    sys.stdin.read()  # until the caller closes it or is gone
    os._exit(3)


if __name__ == "__main__":
    main()
