"""Reads the import graph of a package from its source: every import, wherever it stands.

An import inside a function counts like one at the top. Only `if TYPE_CHECKING:` does not, and only
where that name is the constant False or typing's own. A public name that a package loads lazily
(its `_HOMES` table) is an import of the name's home. What loads a module by a computed name cannot
be read: it is listed as `computed`, and the test has a short list of places where that may be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Ways to get at a module that no import statement shows.
COMPUTED_NAMES = frozenset(["__import__", "__builtins__", "exec", "eval", "globals"])
COMPUTED_MODULES = frozenset(["importlib", "pkgutil", "runpy", "builtins", "zipimport"])


class ImportGraph:
    """Modules of one package, and which of them each may load: `graph.edges[importer]`.

    `known` says what computed names load: importer -> packages, all of whose modules it may load.
    """

    def __init__(self, package: Path, known: dict[str, tuple[str, ...]] | None = None) -> None:
        self.package = package
        self.files = {self._name(file): file for file in sorted(package.rglob("*.py"))}
        self._trees = {name: ast.parse(f.read_text("utf-8")) for name, f in self.files.items()}
        self._homes = {name: _homes(tree) for name, tree in self._trees.items()}
        self.external: dict[str, set[str]] = {}
        self.computed: dict[str, list[str]] = {}
        self.edges = {name: self._imports(name) for name in self.files}
        for name, targets in (known or {}).items():
            self.edges.setdefault(name, set()).update(
                other for other in self.files if any(within(other, t) for t in targets)
            )

    def reached(self, name: str) -> set[str]:
        """Every module that importing and running `name` may load, itself left out."""
        seen, waiting = {name}, [name]
        while waiting:
            for other in self.edges[waiting.pop()]:
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen - {name}

    def path(self, start: str, goal: str) -> list[str]:
        """The shortest way from one module to another."""
        came: dict[str, str | None] = {start: None}
        waiting = [start]
        for name in waiting:
            if name == goal:
                break
            for other in sorted(self.edges[name]):
                if other not in came:
                    came[other] = name
                    waiting.append(other)
        way, at = [], goal if goal in came else None
        while at is not None:
            way.append(at)
            at = came[at]
        return way[::-1]

    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or through others."""
        left, found = set(self.files), []
        for name in sorted(self.files):
            if name in left:
                group = {other for other in self.reached(name) if name in self.reached(other)}
                left -= group | {name}
                if group:
                    found.append(sorted(group | {name}))
        return found

    def _name(self, file: Path) -> str:
        parts = [self.package.name, *file.relative_to(self.package).with_suffix("").parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _imports(self, name: str) -> set[str]:
        """The package's modules that `name` loads; notes other libraries and computed names."""
        here = name.split(".")
        if self.files[name].name != "__init__.py":
            here = here[:-1]
        tree = self._trees[name]
        constant = _type_checking_is_false(tree)
        found: set[str] = set()
        external = self.external.setdefault(name, set())
        computed = self.computed.setdefault(name, [])
        packages: dict[str, str] = {}  # a local name -> the package of ours that it stands for
        sys_names = {"sys"}

        def note(target: str) -> None:
            if target.partition(".")[0] == self.package.name:
                loaded = set(self._resolved(target))
                # the packages around it run first; those around the importer have begun already
                outside = {p for m in loaded for p in _packages(m) if not within(name, p)}
                found.update(loaded | outside)
            else:
                external.add(target)
                if target.partition(".")[0] in COMPUTED_MODULES:
                    computed.append(f"import of {target}")

        for node in _running(tree, constant):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    note(alias.name)
                    if alias.name == "sys" and alias.asname:
                        sys_names.add(alias.asname)
                    if alias.name.partition(".")[0] == self.package.name:
                        local = alias.asname or self.package.name
                        packages[local] = alias.name if alias.asname else self.package.name
            elif isinstance(node, ast.ImportFrom):
                base = here[: len(here) - node.level + 1] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    target = f"{origin}.{alias.name}"
                    note(target)
                    if target == "sys.modules":
                        computed.append(target)
                    if alias.name == "*" and origin in self.files:
                        found.update(
                            home
                            for lazy in self._homes[origin]
                            for home in self._resolved(f"{origin}.{lazy}")
                        )
                    if target in self.files and self.files[target].name == "__init__.py":
                        packages[alias.asname or alias.name] = target
            elif isinstance(node, ast.Name) and node.id in COMPUTED_NAMES:
                computed.append(node.id)
            elif isinstance(node, ast.Attribute):
                dotted = ast.unparse(node)
                root, _, rest = dotted.partition(".")
                if root in sys_names and rest.split(".")[0] == "modules":
                    computed.append("sys.modules")
                if node.attr in ("__import__", "import_module"):
                    computed.append(dotted)
                if root in packages:
                    found.update(self._resolved(f"{packages[root]}.{rest}"))
            elif (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in ("getattr", "vars")
                and any(isinstance(a, ast.Name) and a.id in packages for a in node.args)
            ):
                computed.append(ast.unparse(node))
        found.discard(name)
        return found

    def _resolved(self, target: str) -> Iterator[str]:
        """The modules that a dotted name loads: the longest prefix, and a lazy name's home."""
        known = target
        while known not in self.files and "." in known:
            known = known.rpartition(".")[0]
        if known not in self.files:
            return
        yield known
        rest = target.removeprefix(known).lstrip(".").partition(".")[0]
        home = self._homes[known].get(rest)
        if rest and home is not None:
            yield from self._resolved(f"{known}.{home}")
        # a folder's name may be a public name as well: `from package import name` gives that
        folder, _, leaf = known.rpartition(".")
        if known == target and leaf in self._homes.get(folder, {}):
            yield from self._resolved(f"{folder}.{self._homes[folder][leaf]}")


def within(name: str, package: str) -> bool:
    """Whether a dotted name is a package or something in it."""
    return name == package or name.startswith(package + ".")


def _packages(name: str) -> list[str]:
    """The packages around a module, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _running(node: ast.AST, constant: bool) -> Iterator[ast.AST]:
    """Every node below `node` that may run: all but the body of `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if (
            constant
            and isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            for other in child.orelse:
                yield other
                yield from _running(other, constant)
            continue
        yield child
        yield from _running(child, constant)


def _type_checking_is_false(tree: ast.Module) -> bool:
    """Whether TYPE_CHECKING is typing's own or the constant False, and nothing else in the file."""
    given = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "typing" and not node.level:
            given += [
                True
                for alias in node.names
                if alias.name == "TYPE_CHECKING" and alias.asname is None
            ]
        elif isinstance(node, ast.ImportFrom | ast.Import):
            given += [False for a in node.names if (a.asname or a.name) == "TYPE_CHECKING"]
        elif isinstance(node, ast.Name) and node.id == "TYPE_CHECKING":
            if isinstance(node.ctx, ast.Store):
                given.append(_is_assigned_false(tree, node))
        elif isinstance(node, ast.arg) and node.arg == "TYPE_CHECKING":
            given.append(False)
    return bool(given) and all(given)


def _is_assigned_false(tree: ast.Module, name: ast.Name) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and node.targets == [name]
        and isinstance(node.value, ast.Constant)
        and node.value.value is False
        for node in tree.body
    )


def _homes(tree: ast.Module) -> dict[str, str]:
    """The table of lazily loaded names of a package, name -> submodule."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "_HOMES" for t in targets):
                table = ast.literal_eval(node.value)
                return {str(name): str(home) for name, home in table.items()}
    return {}
