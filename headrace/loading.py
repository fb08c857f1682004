"""Imports the class that a settings file names, and runs its methods, coroutines among them.

`python:my_package.module:Class` is imported by its name; of `folder:module:Class` the folder is put
first on the import path. Coroutines run on one event loop in a thread of its own, so that what a
class leaves running there (connections, tasks) lives between batches.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.declaration import METHODS, TAKES, DeclarationError, TensorType, wrong_arguments

_MAX_LISTED = 20  # modules in a message
_came_with_classes: set[str] = set()  # modules that lie in the folder of a class


def load_class(folder: Path | None, module: str, name: str) -> type[Any]:
    """Runs the module's code. Raises `DeclarationError` saying where it failed."""
    if folder is not None:
        if module_file(folder, module) is None:  # another class's folder may have one
            raise DeclarationError(_no_module(folder, module))
        _put_first(folder.resolve())
    before = set(sys.modules)
    importlib.invalidate_caches()
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise DeclarationError(_import_failed(module, folder, error)) from error
    if folder is not None:
        _note_own(folder.resolve(), set(sys.modules) - before)
        file = Path(getattr(found, "__file__", None) or "built-in")
        if not file.resolve().is_relative_to(folder.resolve()):
            raise DeclarationError(
                f"{module} is a module of Python's or of a package ({file}); give the file in "
                f"{folder} another name"
            )
    try:
        return getattr(found, name)  # type: ignore[no-any-return]
    except AttributeError:
        classes = [each for each, value in vars(found).items() if isinstance(value, type)]
        raise DeclarationError(
            f"{getattr(found, '__file__', None) or module} has no class {name}; it has "
            f"{', '.join(classes) or 'none'}"
        ) from None


def _put_first(folder: Path) -> None:
    """On the import path. What classes imported from their folders is forgotten, since another
    folder, or a new version of this one, has modules of the same names: the classes keep theirs."""
    place = str(folder)
    if place in sys.path:
        sys.path.remove(place)
    sys.path.insert(0, place)
    while _came_with_classes:
        sys.modules.pop(_came_with_classes.pop(), None)


def _note_own(folder: Path, new: set[str]) -> None:
    """Of the modules that came with a class: those that lie in its folder, not in an environment or
    a package that happens to be there."""
    for name in new:
        file = getattr(sys.modules.get(name), "__file__", None)
        if not file or name.partition(".")[0] == "headrace":
            continue
        path = Path(file).resolve()
        is_installed = "site-packages" in path.parts or path.is_relative_to(sys.prefix)
        if path.is_relative_to(folder) and not is_installed:
            _came_with_classes.add(name)


def _no_module(folder: Path | None, module: str) -> str:
    if folder is None:
        return f"there is no module {module}; install its package, or name the folder it lies in"
    if not folder.is_dir():
        return f"{folder} is no folder; name the folder that {module}.py lies in"
    inside = folder.joinpath(*module.split(".")[:-1])
    place = inside if inside.is_dir() else folder
    before = module.rpartition(".")[0] + "." if place != folder else ""
    known = sorted(
        before + each.stem
        for each in place.iterdir()
        if (each.suffix == ".py" and each.stem != "__init__") or (each / "__init__.py").is_file()
    )
    more = ", …" if len(known) > _MAX_LISTED else ""
    listed = ", ".join(known[:_MAX_LISTED]) + more if known else "no .py file"
    return f"there is no module {module} in {folder}; it has {listed}"


def folder_of(module: str) -> Path:
    """Of an imported module's file."""
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).parent if file else Path()


def _import_failed(module: str, folder: Path | None, error: BaseException) -> str:
    where = _place(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name == module.partition(".")[0]:
            return _no_module(folder, module)
        return (
            f"{module} imports {error.name}, which is not installed{where}; add its package to the "
            "model's dependencies"
        )
    return f"{module} cannot be imported: {type(error).__name__}: {error}{where}"


def _place(error: BaseException) -> str:
    """ " (file:line)" of the last frame that is no part of Python's import system."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def complaint(folder: Path | None, module: str, name: str, has_dependencies: bool) -> str | None:
    """What can be told of the class without running its code; None where nothing is wrong.
    `has_dependencies`: packages are installed for the model, so none is looked for here."""
    file = module_file(folder, module)
    if file is None:
        return None if has_dependencies and folder is None else _no_module(folder, module)
    if file.suffix != ".py":
        return None
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError) as error:
        line = getattr(error, "lineno", None)
        return f"{file}{f':{line}' if line else ''} is no Python: {getattr(error, 'msg', error)}"
    wrong = None if has_dependencies else _missing_import(tree, file, folder)
    return wrong or _class_complaint(tree, file, name)


def module_file(folder: Path | None, module: str) -> Path | None:
    """Without importing the module, nor a package around it."""
    parts = module.split(".")
    bases = [folder] if folder is not None else []
    if folder is None:
        try:
            spec = importlib.util.find_spec(parts[0])
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            return None
        if len(parts) == 1:
            return Path(spec.origin) if spec.origin else None
        bases, parts = [Path(each) for each in spec.submodule_search_locations or ()], parts[1:]
    for base in bases:
        plain = base.joinpath(*parts)
        for file in (plain.with_name(plain.name + ".py"), plain / "__init__.py"):
            if file.is_file():
                return file
        compiled = sorted(plain.parent.glob(f"{plain.name}.*.so")) if plain.parent.is_dir() else []
        if compiled:
            return compiled[0]
    return None


def _missing_import(tree: ast.Module, file: Path, folder: Path | None) -> str | None:
    """Of what the module imports first of all; imports inside functions or `try` may be missing."""
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            beside = folder is not None and (
                (folder / top).is_dir() or (folder / f"{top}.py").is_file()
            )
            try:
                known = beside or top in sys.modules or importlib.util.find_spec(top) is not None
            except (ImportError, ValueError):
                known = False
            if not known:
                return (
                    f"{file}:{node.lineno} imports {top}, which is not installed here; install it, "
                    "or add its package to the model's dependencies"
                )
    return None


def _class_complaint(tree: ast.Module, file: Path, name: str) -> str | None:
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        if any(_binds(node, name) for node in ast.walk(tree)):
            return None
        return f"{file} has no class {name}; it has {', '.join(classes) or 'none'}"
    chosen = classes[name]
    for node in _assignments(chosen):
        target, value = node
        if target in ("inputs", "outputs") and isinstance(value, ast.Dict):
            keys = [key.value for key in value.keys if isinstance(key, ast.Constant)]
            twice = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
            if twice is not None:
                return f"{file}:{value.lineno}: {name}.{target} declares {twice!r} twice"
            for key, of in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(of, ast.Constant):
                    try:
                        TensorType.parsed(of.value, f"{name}.{target}: {key.value!s}")
                    except DeclarationError as error:
                        return f"{file}:{of.lineno}: {error}"
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    simple = functions | ast.Assign | ast.AnnAssign | ast.Expr | ast.Pass
    if (
        chosen.bases
        or chosen.keywords
        or chosen.decorator_list
        or any(_may_change(node, name) for node in ast.walk(tree))
        or not all(isinstance(each, simple) for each in chosen.body)
    ):
        return None  # what it has besides is seen when it is loaded
    assigned = {target for target, _ in _assignments(chosen)}
    methods = {each.name: each for each in chosen.body if isinstance(each, functions)}
    for method in methods.values():
        if method.name not in assigned and not _can_take(method):
            return f"{file}:{method.lineno}: {name}.{wrong_arguments(method.name)}"
    bound = {*methods, *assigned}
    for needed in (*METHODS, "inputs", "outputs"):
        if needed not in bound:
            how = "method" if needed in METHODS else "class attribute"
            return (
                f"{file}:{chosen.lineno}: {name} lacks the {how} {needed}; a class has inputs, "
                "outputs, load(self, settings) and predict(self, batch)"
            )
    return None


def _may_change(node: ast.AST, name: str) -> bool:
    """Whether the node may change the class of this name after its body, or bind the name anew."""
    if isinstance(node, ast.Call):
        return any(isinstance(each, ast.Name) and each.id == name for each in node.args)
    target = node.value if isinstance(node, ast.Attribute) else node
    stores = isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store)
    return stores and isinstance(target, ast.Name) and target.id == name


def _can_take(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method can be called with what it is given. A decorator may change that."""
    if method.name not in TAKES or method.decorator_list:
        return True
    arguments, count = method.args, 1 + len(TAKES[method.name])
    places = len(arguments.posonlyargs) + len(arguments.args)
    needed = places - len(arguments.defaults)
    named = any(default is None for default in arguments.kw_defaults)  # without a default
    return needed <= count and (places >= count or arguments.vararg is not None) and not named


def _assignments(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    for each in node.body:
        if isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Name):
                    yield target.id, each.value
                elif isinstance(target, ast.Tuple | ast.List):
                    values: list[ast.expr | None] = [None] * len(target.elts)
                    if isinstance(each.value, ast.Tuple | ast.List):
                        values = [*each.value.elts]
                    for one, value in zip(target.elts, values, strict=False):
                        if isinstance(one, ast.Name):
                            yield one.id, value
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value:
            yield each.target.id, each.value


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each for target in targets for each in ast.walk(target)]
        return any(isinstance(each, ast.Name) and each.id == name for each in names)
    if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
        return True
    if isinstance(node, ast.ImportFrom | ast.Import):
        return any((each.asname or each.name) in (name, "*") for each in node.names)
    return isinstance(node, ast.ClassDef) and node.name == name


class Caller:
    """Calls methods, and waits for what coroutines return. Any thread may call."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def __call__(self, method: Callable[..., Any], *args: Any) -> Any:
        returned = method(*args)
        if not inspect.isawaitable(returned):
            return returned

        async def awaited() -> Any:
            return await returned

        return asyncio.run_coroutine_threadsafe(awaited(), self._running()).result()

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_loop, args=[self._loop], name="coroutines", daemon=True
                ).start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped. What ends a process ends `run_forever`, but is the caller's to see."""
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt):
            continue
    loop.close()
