"""int8 without calibration, for a network's linear layers on torch.

Each weight is stored with a scale for each output channel. Activations are quantised when a batch
runs, with a scale for each *token*: with one for the batch, a row's answer would depend on the rows
beside it. Everything else stays float32, and so do layers whose sizes are no multiples of 8.
Source: Dettmers et al. 2022; Zafrir et al. 2019, Q8BERT.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

LARGEST = 127  # symmetric: -128 is not used
SMALLEST = 1e-8  # of a scale, so that a token of zeros stays zeros
KERNEL_MULTIPLE = 8  # CUDA's integer kernel needs weights whose both sizes are multiples of this
KERNEL_ROWS = 17  # and at least so many rows of activations


def linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The linear layer with an int8 weight; returns [..., out] float32.

    x: [..., in] float32. weight: [in, out] int8. scales and bias: [out] float32.
    """
    tokens = x.reshape(-1, x.shape[-1])
    steps = (tokens.abs().amax(1, keepdim=True) / LARGEST).clamp(min=SMALLEST)
    whole = (tokens / steps).round().to(torch.int8)
    count = tokens.shape[0]
    if x.is_cuda and count < KERNEL_ROWS:
        whole = functional.pad(whole, (0, 0, 0, KERNEL_ROWS - count))
    sums = torch._int_mm(whole, weight)[:count]
    return torch.addcmul(bias, sums * scales, steps).reshape(*x.shape[:-1], weight.shape[1])


def _in_eight_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out, in] as int8, and the float32 scale of each output channel."""
    scales = (weight.abs().amax(1) / LARGEST).clamp(min=SMALLEST)
    return (weight / scales[:, None]).round().to(torch.int8), scales


class Int8Linear(nn.Module):
    """A linear layer with an int8 weight, as `linear` computes it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, scales = _in_eight_bits(layer.weight.detach())
        bias = layer.bias.detach() if layer.bias is not None else torch.zeros_like(scales)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # `t` transposes by strides: the kernels are several times slower on a copy.
        return linear(x, self.weight.t(), self.scales, self.bias)  # type: ignore[operator,arg-type]


def quantise(network: nn.Module) -> None:
    """Replaces the linear layers of a network in place."""
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            even = type(layer) is nn.Linear and not any(
                size % KERNEL_MULTIPLE for size in layer.weight.shape
            )
            if even:
                setattr(parent, name, Int8Linear(layer))  # type: ignore[arg-type]
