"""A file to plain data, with the line of every path: what a mistake points at.

Only mappings, lists and plain scalars come out; tags that would build anything else are refused, as
are duplicate keys and aliases that contain themselves or multiply into more than `MAX_NODES`
nodes. Names are text whatever YAML would make of them (`on`, `1`). Dates stay text.
The composer is PyYAML's own: libyaml's recurses in C and overflows the stack on hostile nesting.
Mistakes inside a document are kept in it, to be told together with those of its data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from yaml_document.mistakes import Mistake, dotted
from yaml_document.shape import DocumentPath

MAX_BYTES = 16 * 1024 * 1024
MAX_NODES = 200_000
DEEPEST = 50
_MAX_ABOVE = 200  # nodes that a node stands in, before it is looked at; three calls each
_MERGE = "tag:yaml.org,2002:merge"
_DATE = "tag:yaml.org,2002:timestamp"
_VALUES = {
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")
}


class _Bounded(yaml.SafeLoader):
    """SafeLoader that follows so many nodes into each other and no more, whatever this process
    allows: raises RecursionError."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._above = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._above >= _MAX_ABOVE:
            raise RecursionError
        self._above += 1
        node = super().compose_node(parent, index)
        self._above -= 1
        return node


class _Loader(_Bounded):
    """It leaves dates as text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (overrides the base's attribute)
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass
class Document:
    """`data` as read so far; `lines` by path, from 1; `mistakes` of the YAML itself."""

    file: str
    data: Any = None
    lines: dict[DocumentPath, int] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, path: DocumentPath, message: str) -> Mistake:
        return Mistake(self.file, self.line_of(path), dotted(path), message)

    def line_of(self, path: DocumentPath) -> int:
        """The line of the path or, where it is absent, of the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 0


def read_document(
    text: str, file: str, *, as_yaml: bool = False, max_nodes: int = MAX_NODES
) -> Document:
    """Never raises: what cannot be read is in the document's `mistakes`. `as_yaml`: dates are
    dates, and what is no plain value is said to be no YAML."""
    document = Document(file)
    try:
        loader = _Bounded(text) if as_yaml else _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            document.lines[()] = node.start_mark.line + 1
            document.data = _Plain(loader, document, as_yaml, max_nodes).value(node, ())
    except yaml.MarkedYAMLError as error:
        document.mistakes.append(_syntax(error, text, file))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        document.mistakes.append(
            Mistake(file, line, "", f"character {error.character!r} may not stand in YAML")
        )
    except RecursionError:
        document.mistakes.append(Mistake(file, 0, "", "is nested too deeply"))
    return document


def _syntax(error: yaml.MarkedYAMLError, text: str, file: str) -> Mistake:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    source = text.split("\n")[line : line + 1]
    if source and "\t" in source[0][: len(source[0]) - len(source[0].lstrip())]:
        return Mistake(file, line + 1, "", "is indented with a tab; YAML allows spaces only")
    words = ", ".join(part for part in (error.context, error.problem) if part)
    return Mistake(file, line + 1, "", f"is no YAML: {words}")


class _Plain:
    """Walks the nodes of one document."""

    def __init__(self, loader: yaml.SafeLoader, document: Document, as_yaml: bool, max_nodes: int):
        self._loader = loader
        self._document = document
        self._as_yaml = as_yaml
        self._above: set[int] = set()
        self._most = self._left = max_nodes

    def value(self, node: yaml.Node, path: DocumentPath) -> Any:
        self._left -= 1
        if self._left == 0:
            self._refuse(path, f"expands to more than {self._most} values")
        if self._left <= 0:
            return None
        if id(node) in self._above:
            return self._refuse(path, "contains itself by an alias")
        if node.tag not in _VALUES and not (self._as_yaml and node.tag == _DATE):
            return self._refuse(path, f"has the tag {node.tag}; plain values only")
        if len(self._above) >= DEEPEST:
            return self._refuse(path, f"is nested more than {DEEPEST} deep")
        self._above.add(id(node))
        try:
            return self._inner(node, path)
        finally:
            self._above.discard(id(node))

    def _inner(self, node: yaml.Node, path: DocumentPath) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(each, (*path, at)) for at, each in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: DocumentPath) -> Any:
        self._document.lines[path] = node.start_mark.line + 1
        return self.value(node, path)

    def _scalar(self, node: yaml.Node, path: DocumentPath) -> Any:
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError, OverflowError) as error:
            return self._refuse(path, f"is no {node.tag.rsplit(':', 1)[-1]}", problem=str(error))

    def _mapping(self, node: yaml.MappingNode, path: DocumentPath) -> dict[str, Any]:
        """Own keys win over merged ones (`<<`), as YAML has it."""
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key, inner in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged = self._merged(inner, path) | merged
            elif not isinstance(key, yaml.ScalarNode):
                said = "has a name that is no plain text"
                self._refuse(path, said, line, problem="a name is no text")
            elif key.value in first:
                said = f"is set twice, on lines {first[key.value]} and {line}; must be set once"
                self._note((*path, key.value), said, line)
            else:
                first[key.value] = self._document.lines[(*path, key.value)] = line
                found[key.value] = self.value(inner, (*path, key.value))
        return merged | found

    def _merged(self, node: yaml.Node, path: DocumentPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for each in self._merge_sources(node):
            lines = dict(self._document.lines)
            value = self.value(each, path)
            self._document.lines |= lines  # where both define a name, the later text is the own one
            if not isinstance(value, dict):
                self._refuse(path, "merges (<<) something that is no mapping")
                continue
            result = value | result
        return result

    def _merge_sources(self, node: yaml.Node) -> Iterator[yaml.Node]:
        yield from node.value if isinstance(node, yaml.SequenceNode) else (node,)

    def _refuse(
        self, path: DocumentPath, message: str, line: int | None = None, *, problem: str = ""
    ) -> None:
        """At the path's own line: an alias is wrong where it is used."""
        at = self._document.line_of(path) if line is None else line
        if self._as_yaml:
            self._note((), f"is no YAML: {problem or message}", at)
        else:
            self._note(path, message, at)

    def _note(self, path: DocumentPath, message: str, line: int) -> None:
        mistake = Mistake(self._document.file, line, dotted(path), message)
        self._document.mistakes.append(mistake)


def read_file(path: Path | str, *, as_yaml: bool = False, max_nodes: int = MAX_NODES) -> Document:
    """As `read_document`, which also says what its arguments are."""
    file = str(path)
    try:
        with open(path, "rb") as stream:
            body = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return _unread(file, 0, f"cannot be read: {reason}")
    if len(body) > MAX_BYTES:
        return _unread(file, 0, f"is larger than {MAX_BYTES} bytes")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        return _unread(file, line, f"byte {error.start} is no UTF-8; save the file as UTF-8")
    return read_document(text, file, as_yaml=as_yaml, max_nodes=max_nodes)


def _unread(file: str, line: int, message: str) -> Document:
    return Document(file, mistakes=[Mistake(file, line, "", message)])
