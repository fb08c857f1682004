"""The check of text in a `torch.export` graph: plain naming, or what could run code.

torch resolves operator names by attribute from its own module (`torch.os.system` would do), hands
symbolic sizes to `sympy.sympify`, compiles guards as Python, and writes names into generated
source. So everything is allowed by list: operators of aten and prims, arithmetic, comparisons of
sizes, names of word characters. Unknown text is refused, at the price of some honest models.

Operators have the form of aten's and prims' names here. Whether torch's dispatcher has them, which
rules out TorchScript's builtins, is for whoever has torch (`operators`). Some operators trust the
shapes of their arguments (`native_batch_norm`), so a stranger's archive still belongs in a replica
of its own. It does not judge what an operator computes, nor how long.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GRAPH = "models/model.json"
MAX_GRAPH_BYTES = 256 << 20
NAME = re.compile(r"[\w.+\-]*")
_DUNDER = r"__(?:i?(?:and|or|xor|lshift|rshift))__"  # the only such names in aten
ATEN = re.compile(rf"torch\.ops\.(aten|prims)\.(_?[a-z]\w*|{_DUNDER})\.([A-Za-z]\w*)")
SYMBOLIC = re.compile(
    r"torch\.sym_(int|float|max|min|not|sqrt|sum|ite)|math\.(ceil|floor|trunc|sqrt)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
)
# The body of these is a part of the graph, whose text is judged like the rest.
SCOPES = re.compile(r"torch\.ops\.higher_order\.wrap_with_(set_grad_enabled|autocast)")
# Operators that open files, and those with which a graph could most easily read and write memory
# beside its tensors, because their kernels take sizes and indices on trust: aliases of any size,
# sparse and nested tensors, segments, gradients, optimisers.
REFUSED = re.compile(
    r"torch\.ops\.aten\.(_?(from_file|save)|_reshape_alias(_copy)?|set_?|resize(_as)?(_sparse)?_?"
    r"|_?sparse_(coo|compressed|[bc]s[cr])_tensor\w*|_(nested|sobol|fused_(ada|sgd))\w*"
    r"|_jagged_\w+|_padded_dense_\w+|_convert_indices_\w+|_?ctc_loss|_?segment_reduce"
    r"|\w+_backward(_\w+)?)\..*"
)
SIZE_FUNCTIONS = re.compile(
    r"Symbol|Integer|Float|Rational|"
    r"Add|Mul|Pow|Min|Max|Mod|PythonMod|"
    r"FloorDiv|CeilDiv|CleanDiv|ToFloat|CeilToInt|FloorToInt|TruncToInt|IntTrueDiv|FloatTrueDiv|"
    r"Equality|Unequality|LessThan|GreaterThan|StrictLessThan|StrictGreaterThan|"
    r"Eq|Ne|And|Or|Not|floor|ceiling"
)
SIZE_NAME = re.compile(rf"[a-z]+\d+|{SIZE_FUNCTIONS.pattern}")
ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Load),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_OPERATORS = ("target", "as_operator")
TREES = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")


def first_unsafe(graph: Any) -> str | None:
    """The first text that is not on the lists, with its key; None where all is plain."""
    for key, text in _texts("", graph):
        if not _plain(key, text):
            if key not in _OPERATORS:
                return f"{key} {text!r}"
            return (
                f"the operator {text!r}, which is not one of aten and prims that leave files and "
                "other memory alone: write that part of the model in plain torch, or export it "
                "with torch.onnx.export"
            )
    return None


def operators(graph: Any) -> set[str]:
    """The aten and prims operators that a graph which is plain names, as torch's dispatcher calls
    them: `aten::add.Tensor`."""
    targets = (ATEN.fullmatch(text) for key, text in _texts("", graph) if key in _OPERATORS)
    found = (match.groups() for match in targets if match is not None)
    return {
        f"{library}::{name}.{overload}".removesuffix(".default")
        for library, name, overload in found
    }


def unsafe_in(path: Path) -> str | None:
    """`first_unsafe` of an archive's graph, as Python's zip reader sees it: a preview. Whoever
    loads the archive has to ask again of what torch's own reader sees."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(f"/{GRAPH}")]
            info = archive.getinfo(name)
            if info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_GRAPH_BYTES:
                return f"a description that is compressed, or of more than {MAX_GRAPH_BYTES} bytes"
            return first_unsafe(json.loads(archive.read(name)))
    except (zipfile.BadZipFile, ValueError, OSError, RecursionError) as error:
        return f"no {GRAPH} that can be read ({error})"


def _texts(key: str, part: Any) -> Iterator[tuple[str, str]]:
    """All (key, text), the keys of objects too; metadata is for people and is never evaluated."""
    if isinstance(part, str):
        yield key, part
    elif isinstance(part, list):
        for item in part:
            yield from _texts(key, item)
    elif isinstance(part, dict):
        for name, item in part.items():
            yield "key", name
            if name != "metadata":
                yield from _texts(name, item)


def _plain(key: str, text: str) -> bool:
    if key in _OPERATORS:
        known = any(form.fullmatch(text) for form in (ATEN, SYMBOLIC, SCOPES))
        return known and not REFUSED.fullmatch(text)
    if key == "expr_str":
        return _all_nodes(text, _is_size)
    if key == "guards_code":
        return _all_nodes(text, _is_guard)
    if key in ("in_spec", "out_spec"):
        return _is_tree(text)
    return NAME.fullmatch(text) is not None


def _all_nodes(text: str, allowed: Any) -> bool:
    try:
        return all(allowed(node) for node in ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError):
        return False


def _is_size(node: ast.AST) -> bool:
    """`Mul(Integer(2), Symbol('s0', positive=True))` and plain arithmetic of such."""
    if isinstance(node, ast.Call):  # the name itself is judged when the walk comes to it
        return isinstance(node.func, ast.Name) and node.func.id[0].isalpha()
    if isinstance(node, ast.Name):
        return SIZE_NAME.fullmatch(node.id) is not None
    return _is_arithmetic(node) or isinstance(node, ast.keyword)


def _is_guard(node: ast.AST) -> bool:
    """`L['ids'].size()[0] == 3`: comparisons of the inputs' sizes."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and not node.args and not node.keywords
    if isinstance(node, ast.Attribute):
        return node.attr == "size"
    if isinstance(node, ast.Name):
        return node.id == "L"
    return _is_arithmetic(node) or isinstance(node, ast.Subscript)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.fullmatch(r"\w*", node.value) is not None  # sympify evaluates nested text
    return isinstance(node, ARITHMETIC)


def _is_tree(text: str) -> bool:
    """Nested tuples, lists and dicts alone: other containers are found by import."""
    try:
        tree = json.loads(text)
        return isinstance(tree, list) and len(tree) == 2 and _is_branch(tree[1])
    except (ValueError, KeyError, TypeError):
        return False


def _is_branch(branch: Any) -> bool:
    plain = all(
        NAME.fullmatch(text) for _, text in _texts("", json.loads(branch["context"] or "null"))
    )
    return plain and branch["type"] in TREES and all(map(_is_branch, branch["children_spec"]))
