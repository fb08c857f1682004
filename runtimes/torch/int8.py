"""Quantises linear layers to int8 dynamically, without calibration.

Each linear layer's weight is stored as int8 with a scale for each output channel. Activations are
quantised when a batch runs, with a scale for each *token*: with one scale for the batch, a row's
answer would depend on the rows beside it. Sums are int32; everything else (embeddings, attention,
norms) stays float32.

Layers whose sizes are no multiples of 8 stay float32 too, since the integer kernels need that.
Source: Dettmers et al. 2022, vector-wise quantisation; Zafrir et al. 2019, Q8BERT.
"""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn import functional

LARGEST = 127  # symmetric: -128 is not used
SMALLEST = 1e-8  # of a scale, so that a token of zeros stays zeros
KERNEL_MULTIPLE = 8  # CUDA's integer kernel needs weights whose both sizes are multiples of this
KERNEL_ROWS = 17  # and at least so many rows of activations


def quantised(module: fx.GraphModule) -> fx.GraphModule:
    """Quantises a module's linear layers in place; returns the module."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target is functional.linear:
            _replace(module, node)
    module.graph.lint()
    module.recompile()
    module.delete_all_unused_submodules()
    return module


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


def _replace(module: fx.GraphModule, node: fx.Node) -> None:
    x, weight, bias = node.args
    if not isinstance(weight, fx.Node) or not isinstance(bias, fx.Node):
        return
    name = str(weight.target)
    values = module.get_parameter(name)
    if values.shape[0] % KERNEL_MULTIPLE or values.shape[1] % KERNEL_MULTIPLE:
        return
    scales = (values.abs().amax(1) / LARGEST).clamp(min=SMALLEST)
    whole = (values / scales[:, None]).round().to(torch.int8)
    # `t` transposes by strides, without a copy: the kernels are several times slower on a copy.
    module.register_parameter(f"{name}_int8", nn.Parameter(whole, requires_grad=False))
    module.register_parameter(f"{name}_scales", nn.Parameter(scales, requires_grad=False))
    with module.graph.inserting_before(node):
        stored = module.graph.get_attr(f"{name}_int8")
        turned = module.graph.call_method("t", (stored,))
        factors = module.graph.get_attr(f"{name}_scales")
        made = module.graph.call_function(linear, (x, turned, factors, bias))
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)
    if not weight.users:
        module.graph.erase_node(weight)
        delattr(module, name)
