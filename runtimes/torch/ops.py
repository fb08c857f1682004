"""Implements the operations of `GraphOps` as one torch module, and quantises its linear layers.

Every call adds a node to a `torch.fx` graph; every weight becomes a parameter of the module that
`module` returns. `transformers`' own module took 1.7 ms more for one short row and 6 to 10 % more
for 32 rows (MiniLM, eager, one thread). Pooling's arithmetic runs in float32. For inference only.

int8 without calibration: each linear layer's weight is stored with a scale for each output channel.
Activations are quantised when a batch runs, with a scale for each *token*: with one for the batch,
a row's answer would depend on the rows beside it. Everything else stays float32, and so do layers
whose sizes are no multiples of 8. Source: Dettmers et al. 2022; Zafrir et al. 2019, Q8BERT.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional

from runtimes.graph.pooling import Activation

Array = np.ndarray[Any, Any]
Node = fx.Node


class TorchOps:
    """A `GraphOps[fx.Node]` that builds one module, called in the order in which it runs."""

    def __init__(self) -> None:
        self._graph = fx.Graph()
        self._root = nn.Module()
        self._inputs: dict[str, Node] = {}

    def module(self, outputs: dict[str, Node]) -> fx.GraphModule:
        """The module; it takes inputs in the order of the calls of `ids` and returns a dict."""
        self._graph.output(outputs)
        self._graph.eliminate_dead_code()
        self._graph.lint()
        return fx.GraphModule(self._root, self._graph).eval()

    def ids(self, name: str) -> Node:
        self._inputs[name] = self._graph.placeholder(name)
        return self._inputs[name]

    def lookup(self, table: Array, ids: Node, name: str) -> Node:
        return self._call(functional.embedding, ids, self._weight(table, name))

    def positions(self, table: Array, ids: Node, name: str) -> Node:
        length = self._graph.call_method("size", (ids, 1))
        return self._call(torch.narrow, self._weight(table, name), 0, 0, length)

    def add(self, left: Node, right: Node) -> Node:
        return self._call(torch.add, left, right)

    def multiply(self, left: Node, right: Node) -> Node:
        return self._call(torch.mul, self._float(left), self._float(right))

    def divide(self, left: Node, right: Node) -> Node:
        return self._call(torch.div, self._float(left), self._float(right))

    def layer_norm(self, x: Node, scale: Array, shift: Array, epsilon: float, name: str) -> Node:
        weight, bias = self._weight(scale, f"{name}scale"), self._weight(shift, f"{name}shift")
        return self._call(functional.layer_norm, x, scale.shape, weight, bias, epsilon)

    def linear(self, x: Node, weight: Array, bias: Array, name: str) -> Node:
        parameters = self._weight(weight, f"{name}weight"), self._weight(bias, f"{name}bias")
        return self._call(functional.linear, x, *parameters)

    def activation(self, x: Node, kind: Activation) -> Node:
        if kind == "gelu_tanh":
            return self._call(functional.gelu, x, approximate="tanh")
        plain: dict[str, Callable[..., Any]] = {
            "gelu": functional.gelu,
            "relu": torch.relu,
            "tanh": torch.tanh,
        }
        return self._call(plain[kind], x)

    def attention_mask(self, mask: Node) -> Node:
        any_weight = next(name for name, _ in self._root.named_parameters())
        return self._call(_additive, mask, self._graph.get_attr(any_weight))

    def attention(self, query: Node, key: Node, value: Node, mask: Node, heads: int) -> Node:
        parts = [self._call(_split_heads, x, heads) for x in (query, key, value)]
        mixed = self._call(functional.scaled_dot_product_attention, *parts, attn_mask=mask)
        return self._call(_join_heads, mixed)

    def first_token(self, x: Node) -> Node:
        return self._call(operator.getitem, x, (slice(None), 0))

    def float_mask(self, mask: Node) -> Node:
        return self._float(self._call(torch.unsqueeze, mask, 2))

    def sum_over(self, x: Node, axis: int) -> Node:
        return self._call(torch.sum, x, axis, keepdim=axis == -1)

    def at_least(self, x: Node, floor: float) -> Node:
        return self._call(torch.clamp, x, min=floor)

    def square_root(self, x: Node) -> Node:
        return self._call(torch.sqrt, x)

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Node:
        return self._graph.call_function(function, arguments, options)

    def _float(self, x: Node) -> Node:
        return self._graph.call_method("float", (x,))

    def _weight(self, array: Array, name: str) -> Node:
        target = name.strip(".").replace(".", "_")
        # A copy: torch must own the memory, numpy's may be a read-only map of the file.
        parameter = nn.Parameter(torch.from_numpy(array.copy()), requires_grad=False)
        self._root.register_parameter(target, parameter)
        return self._graph.get_attr(target)


def _additive(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The additive attention mask: 0 for tokens, the weights' type's lowest number for padding.

    Finite rather than -inf, so that a row without tokens results in numbers instead of NaN.
    Computed once a batch: torch would convert a boolean mask again in every layer.
    """
    lowest = torch.finfo(like.dtype).min
    hidden = (1 - mask).to(like.dtype) * lowest
    return hidden[:, None, None, :]


def _split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    rows, length, width = x.shape
    return x.view(rows, length, heads, width // heads).transpose(1, 2)


def _join_heads(x: torch.Tensor) -> torch.Tensor:
    rows, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(rows, length, heads * width)


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
    whole, scales = _in_eight_bits(values)
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
        return linear(x, self.weight.t(), self.scales, self.bias)  # type: ignore[operator,arg-type]


def quantised_layers(network: nn.Module) -> None:
    """As `quantised`, for a module whose linear layers are modules of torch's."""
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            even = type(layer) is nn.Linear and not any(
                size % KERNEL_MULTIPLE for size in layer.weight.shape
            )
            if even:
                setattr(parent, name, Int8Linear(layer))  # type: ignore[arg-type]
