"""Private names of torch and transformers: each does what is expected, and has one place."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest
import torch

import metacount
from metacount.measure import torch_private as private
from metacount.measure import transformers_private as theirs

PACKAGE = Path(metacount.__file__).parent
FILES = {"measure/torch_private.py", "measure/transformers_private.py"}
# names of operators are data: what they cost; the rest are methods of named tuples and of Python
KNOWN = {"_", "_replace", "_exit", "__name__"}


def private_names(file: Path, package: Path = PACKAGE) -> list[str]:
    """Private names of other libraries that a file uses, one `file:line name` each."""
    where = file.relative_to(package).as_posix()
    tree = ast.parse(file.read_text("utf-8"))
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    own |= {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if not names[0].startswith(("_", "metacount")):
                found += [(node.lineno, n) for n in names if n.startswith("_")]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            operator = ast.unparse(node).startswith(("aten.", "torch.ops.aten."))
            if not (operator or node.attr.startswith("__") or node.attr in own | KNOWN):
                found.append((node.lineno, node.attr))
    return [f"{where}:{line} {name}" for line, name in found]


def test_private_names_stand_in_two_files() -> None:
    found = {
        file.relative_to(PACKAGE).as_posix(): private_names(file) for file in PACKAGE.rglob("*.py")
    }
    assert all(found[file] for file in FILES)
    assert [line for file, lines in found.items() if file not in FILES for line in lines] == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._refs",
        "from torch._subclasses.fake_tensor import FakeTensor",
        "from torch.utils._pytree import tree_map",
        "def f(model):\n    model._parameters",
        "def f(config):\n    config._attn_implementation = 1",
    ],
)
def test_a_private_name_elsewhere_is_found(tmp_path: Path, text: str) -> None:
    file = tmp_path / "some.py"
    file.write_text(text + "\n")
    assert len(private_names(file, tmp_path)) == 1


@pytest.mark.parametrize("way", ["symbols_in_products", "_InPython"])
def test_products_keep_sizes_that_are_symbols(way: str) -> None:
    environment, mode = private.symbolic_shapes()
    raw, size = private.symbolic_size(environment, "n", 7)
    with mode, getattr(private, way)():
        product = torch.empty(size, 2, 1) @ torch.empty(size, 1, size)
    assert str(product.numel().node.expr) == f"2*{raw}**2"
    assert environment.replace(raw) == raw


def test_nodes_have_numbers_in_the_order_in_which_they_are_made() -> None:
    ran: list[int | None] = []

    class Seen(private.DispatchMode):
        def run_operator(self, func, args, kwargs):  # type: ignore[no-untyped-def]
            ran.append(private.running_node_number())
            return func(*args, **kwargs)

    x = torch.ones(3, requires_grad=True)
    first = private.next_node_number()
    y = x.exp()
    second = private.next_node_number()
    z = y.sum()
    assert private.graph_names(z)[first] == "ExpBackward0"
    assert private.graph_names(z)[second] == "SumBackward0"
    assert private.running_node_number() is None
    with Seen():
        z.backward()
    # what makes the first gradient is of no node, nor is what puts the last one down
    assert [number for number in dict.fromkeys(ran) if number is not None] == [second, first]


def test_pieces_are_those_that_fsdp2_cuts() -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param

    cut = _fsdp_common._chunk_with_empty
    for size in (0, 1, 7, 8, 12, 13):
        for ranks in (1, 2, 3, 5, 8, 40):
            for dim in (0, 1):
                shape = (size, 3) if dim == 0 else (3, size)
                tensor = torch.arange(3 * size).view(shape)
                mine = private.Pieces(tensor, ranks, dim)
                assert len(mine) == ranks
                for piece, other in zip(mine, cut(tensor, ranks, dim), strict=True):
                    assert (piece.shape, piece.stride()) == (other.shape, other.stride())
                    assert torch.equal(piece, other)
    # FSDP2 looks it up under this name
    asks = inspect.unwrap(_fsdp_param.FSDPParam._init_sharded_param)
    assert cut.__name__ in asks.__code__.co_names
    with pytest.raises(ZeroDivisionError), private.only_own_pieces():
        assert _fsdp_param._chunk_with_empty is private.Pieces
        raise ZeroDivisionError
    assert _fsdp_param._chunk_with_empty is cut


def test_nothing_is_checked_before_the_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, theirs.STRICT[0], raising=False)
    assert theirs.type_check() is None
