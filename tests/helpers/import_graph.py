"""Reads which modules each file may load: every import, inside functions too.

A public name that a package loads late (its `_NAMES` table) is an import of its home; a name that
is computed for `import_module` may be that of every module that begins like it, or of those that a
table names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path


def modules_in(folder: Path, root: Path) -> dict[str, Path]:
    """The files of a folder by the dotted names that they have where `root` is on the path."""
    files = {file.relative_to(root).with_suffix(""): file for file in sorted(folder.rglob("*.py"))}
    return {".".join(f.parts).removesuffix(".__init__"): file for f, file in files.items()}


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package or something in it."""
    return name == package or name.startswith(package + ".")


class ImportGraph:
    """Which modules load which: `edges` of the files that are given, `libraries` of all others.

    The body of `if TYPE_CHECKING:` counts in `typed_edges` alone, and not that of an `__init__`:
    public names stand in its table as well. A library `?...` is a call that could load anything.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        trees = {name: ast.parse(file.read_text("utf-8")) for name, file in files.items()}
        self.files = files
        self._homes = {name: _homes(tree) for name, tree in trees.items()}
        run = {name: set(self._loaded(name, tree, types=False)) for name, tree in trees.items()}
        self.edges = {name: loaded & set(files) - {name} for name, loaded in run.items()}
        self.libraries = {name: loaded - set(files) for name, loaded in run.items()}
        read = {name: set(self._loaded(name, tree, types=True)) for name, tree in trees.items()}
        self.typed_edges = {name: loaded & set(files) - {name} for name, loaded in read.items()}

    def reached(self, start: str) -> dict[str, str]:
        """Every module that importing and running `start` may load: it -> who loads it first."""
        return _reached(self.edges, start)

    def way(self, start: str, goal: str) -> str:
        """The shortest way from one module to another: a -> b -> c."""
        loader, names = self.reached(start), [goal]
        while names[0] != start:
            names.insert(0, loader[names[0]])
        return " -> ".join(names)

    def _loaded(self, name: str, tree: ast.Module, *, types: bool) -> Iterator[str]:
        is_package = self.files[name].stem == "__init__"
        package = name.split(".")[: None if is_package else -1]
        local: dict[str, str] = {}  # names in the file, and what they may stand for
        for node in _nodes(tree, types=types and not is_package):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from self._resolved(name, alias.name)
                    first = alias.name.partition(".")[0]
                    local[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                around = package[: len(package) - node.level + 1] if node.level else []
                origin = ".".join([*around, *([node.module] if node.module else [])])
                for alias in node.names:
                    late = self._homes.get(origin, {}) if alias.name == "*" else {}
                    for each in (alias.name, *late):
                        yield from self._resolved(name, f"{origin}.{each}")
                    local[alias.asname or alias.name] = f"{origin}.{alias.name}"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if local.get(node.value.id) in self.files:
                    yield from self._resolved(name, f"{local[node.value.id]}.{node.attr}")
            elif isinstance(node, ast.Call) and not self._homes[name]:
                function = local.get(getattr(node.func, "id", "")) or ast.unparse(node.func)
                if function.endswith(("import_module", "__import__")):
                    yield from self._begun(name, node.args[0])

    def _begun(self, name: str, argument: ast.expr) -> Iterator[str]:
        """The modules whose names begin with what is not computed of an argument.

        A file with a table of its own name beside it loads what that names: `module:NAME`.
        """
        table, start = self.files[name].with_suffix(".tsv"), ""
        if table.exists():
            for module in re.findall(r"\b([a-z][\w.]*):[A-Za-z]\w*", table.read_text("utf-8")):
                yield from self._resolved(name, f"{name.partition('.')[0]}.{module}")
            return
        for part in argument.values if isinstance(argument, ast.JoinedStr) else [argument]:
            if isinstance(part, ast.FormattedValue) and ast.unparse(part.value) == "__name__":
                start += name
            elif isinstance(part, ast.Constant):
                start += str(part.value)
            else:
                break
        yield from (other for other in self.files if start and other.startswith(start))
        yield from self._resolved(name, start or f"?{ast.unparse(argument)}")

    def _resolved(self, name: str, target: str) -> Iterator[str]:
        """What a dotted name loads: the packages around it, it, a late name's home."""
        known = target
        while known not in self.files and "." in known:
            known = known.rpartition(".")[0]
        if known not in self.files:
            yield target
            return
        parts = known.split(".")
        around = [".".join(parts[:i]) for i in range(1, len(parts))]
        # those around the importer have begun already
        yield from (each for each in around if each in self.files and not within(name, each))
        yield known
        folder, leaf = known, target.removeprefix(known).lstrip(".").partition(".")[0]
        if not leaf:  # `from package import name`: a folder's name may be a public name as well
            folder, _, leaf = known.rpartition(".")
        if leaf in self._homes.get(folder, {}):
            yield from self._resolved(name, f"{folder}.{self._homes[folder][leaf]}")


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that load each other, directly or through others."""
    reached = {name: set(_reached(edges, name)) for name in edges}
    groups = {tuple(sorted(b for b in reached[a] if a in reached[b])) for a in edges}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def _reached(edges: Mapping[str, set[str]], start: str) -> dict[str, str]:
    loader, waiting = {start: ""}, [start]
    for name in waiting:
        for other in sorted(edges[name] - loader.keys()):
            loader[other] = name
            waiting.append(other)
    return loader


def _nodes(tree: ast.Module, *, types: bool) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        yield node
        guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        waiting += node.orelse if guard and not types else ast.iter_child_nodes(node)


def _homes(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
            table: dict[str, str] = ast.literal_eval(node.value)
            return {name: home for home, names in table.items() for name in names.split()}
    return {}
