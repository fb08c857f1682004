"""Which modules of routers/ assign the fields of the core's shared records?

`python -m tests.record_writers` prints it. Read from the source alone: an assignment counts for
every record that has a field of that name, unless what is assigned to is said to be something else:
by the annotation of the function's parameter, by the class that `self` is of, or by what the name
is annotated as, or made of, wherever it is. So a new writer may be suspected wrongly, and is hardly
missed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ("Lease", "ReplicaState", "Row", "TrackedRequest")
_WORD = re.compile(r"\w+")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Names:
    """What the source says: each class's fields, which classes there are but for protocols, and
    what a name or attribute is annotated as or made of, over all files."""

    fields: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    classes: set[str] = field(default_factory=set)
    kinds: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def read(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.arg) and node.annotation is not None:
                self.kinds[node.arg] |= words(node.annotation)
            elif isinstance(node, ast.AnnAssign):
                self.kinds[_name(node.target)] |= words(node.annotation)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for target in node.targets:
                    self.kinds[_name(target)].add(_name(node.value.func))
            elif isinstance(node, ast.ClassDef):
                self._read_class(node)

    def _read_class(self, node: ast.ClassDef) -> None:
        if not any("Protocol" in words(base) for base in node.bases):
            self.classes.add(node.name)
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                self.fields[node.name].add(each.target.id)

    def may_be(self, record: str, kinds: set[str]) -> bool:
        """What is annotated so; nothing: what has no annotation."""
        classes = kinds & self.classes
        return not classes or record in classes


def words(annotation: ast.expr) -> set[str]:
    return set(_WORD.findall(ast.unparse(annotation)))


def _name(node: ast.expr) -> str:
    """Of a variable or an attribute; empty for what has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def assigned(tree: ast.Module) -> Iterator[tuple[ast.Attribute, str, Function | None]]:
    """Attributes that are assigned, deleted, or have an item that is: with the class and the
    function that it is in."""

    def inside(
        node: ast.AST, owner: str, function: Function | None
    ) -> Iterator[tuple[ast.Attribute, str, Function | None]]:
        if isinstance(node, ast.ClassDef):
            owner = node.name
        elif isinstance(node, Function):
            function = node
        is_assigned = not isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        target = node.value if isinstance(node, ast.Subscript) else node
        if is_assigned and isinstance(target, ast.Attribute):
            yield target, owner, function
        for child in ast.iter_child_nodes(node):
            yield from inside(child, owner, function)

    return inside(tree, "", None)


def writers(files: Mapping[str, str]) -> dict[str, dict[str, set[str]]]:
    """Record → field → modules that assign it. `files`: source by module."""
    trees = {module: ast.parse(source) for module, source in files.items()}
    names = Names()
    for tree in trees.values():
        names.read(tree)
    found: dict[str, dict[str, set[str]]] = {record: {} for record in RECORDS}
    for module, tree in trees.items():
        for target, owner, function in assigned(tree):
            kinds = _kinds(target.value, owner, function, names)
            for record in RECORDS:
                if target.attr in names.fields[record] and names.may_be(record, kinds):
                    found[record].setdefault(target.attr, set()).add(module)
    return found


def _kinds(holder: ast.expr, owner: str, function: Function | None, names: Names) -> set[str]:
    """What the holder of an attribute is, as far as the source says it."""
    name = _name(holder)
    if name == "self" and isinstance(holder, ast.Name):
        return {owner}
    if isinstance(holder, ast.Name) and function is not None:
        args = function.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
            if arg.arg == name and arg.annotation is not None:
                return words(arg.annotation)
    return names.kinds.get(name, set()) if name else set()


def sources() -> dict[str, str]:
    """Of routers/ but for the simulator, which is told nothing but actions."""
    paths = [path for path in (ROOT / "routers").rglob("*.py") if "simulation" not in path.parts]
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}


def modules(found: Mapping[str, set[str]]) -> set[str]:
    return set().union(*found.values())


def main() -> None:
    files = sources()
    names = Names()
    for source in files.values():
        names.read(ast.parse(source))
    for record, found in writers(files).items():
        print(f"{record}: {len(names.fields[record])} fields, {len(modules(found))} modules")
        for module in sorted(modules(found)):
            print(f"  {module}:", *sorted(each for each in found if module in found[each]))


if __name__ == "__main__":
    main()
