"""Which part of a model a step trains: all but what is frozen, or adapters of low rank."""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.formulas import indexer
from metacount.formulas.dim import Dim
from metacount.formulas.named import LAYERS, STORED, tensors_by_path
from metacount.formulas.optimizer import state_bytes
from metacount.formulas.terms import Weight
from metacount.formulas.trained import HEAD, NOT_SEEN, OF_POSITIONS
from metacount.frozen import frozen
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

ALL_LINEAR = "all-linear"  # among targets: every linear layer but the output head
BASE, LOW, HIGH = "base", "lora_a", "lora_b"  # a frozen linear layer, and its adapter B·A
ADAPTERS = (f".{LOW}", f".{HIGH}")


@frozen
class Part:
    """Which part of a model a step trains: all but what is frozen, or adapters of low rank.

    `freeze` are paths or last names of modules and parameters. With a `rank` all is frozen but the
    adapters beside the linear layers whose last names are `targets`.
    """

    rank: int | None = None
    targets: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()

    def adapts(self, path: str, weight: Weight) -> bool:
        """Tell whether an adapter stands beside a tensor: a linear layer's matrix, not the head."""
        name = path.removesuffix(".weight")
        multiplies = weight.rows or path.endswith(OF_POSITIONS)
        linear = multiplies and len(weight.shape) == 2 and name != HEAD
        if self.rank is None or not linear:
            return False
        return ALL_LINEAR in self.targets or name.rpartition(".")[2] in self.targets


WHOLE = Part()


@frozen
class Tensors:
    """The tensors of a model with its adapters, by path; the paths of those that are trained."""

    stored: dict[str, Weight]
    trained: frozenset[str]

    @property
    def trained_params(self) -> Dim:
        """Values that are trained."""
        return sum(self.stored[path].size for path in self.trained)

    @property
    def adapter_params(self) -> Dim:
        """Values of adapters, those among them that have no gradient."""
        return sum(w.size for path, w in self.stored.items() if path.endswith(ADAPTERS))

    def optimizer_bytes(self, *, optimizer: str, width: int) -> Dim:
        """Count the bytes of an optimizer's state for what is trained.

        Source: `optimizer.state_bytes`.
        """
        return sum(
            state_bytes(self.stored[path], optimizer=optimizer, width=width, inner=is_inner(path))
            for path in self.trained
        )


def is_inner(path: str) -> bool:
    """Tell whether a tensor is in a block, one that is shared among layers included.

    >>> is_inner("decoder.layers.0.mlp.up_proj.weight"), is_inner("decoder.norm.weight")
    (True, False)
    """
    return path.split(".")[1] in (LAYERS, STORED)


def chosen_tensors(spec: ModelSpec, part: Part) -> Tensors:
    """Return the tensors of a model with its adapters, and the paths of those that are trained.

    An indexer and a pooler have no gradient: no gradient passes a choice, and the loss is not of
    what a pooler gives.

    Source: Hu et al. 2021, arXiv:2106.09685, sec. 4.1 (adapters).

    >>> from metacount.catalog import entry
    >>> gpt2 = entry("gpt2").spec()
    >>> sorted(chosen_tensors(gpt2, Part(freeze=("decoder",))).trained)
    ['embed_tokens.weight']
    >>> len(chosen_tensors(gpt2, Part(rank=8, targets=("q_proj",))).trained)
    24
    """
    stored: dict[str, Weight] = {}
    for path, weight in tensors_by_path(spec).items():
        layer, _, kind = path.rpartition(".")
        beside = f"{layer}.weight"
        matrix = weight if beside == path else stored.get(f"{layer}.{BASE}.weight")
        if matrix is None or not part.adapts(beside, matrix):
            stored[path] = weight
            continue
        stored[f"{layer}.{BASE}.{kind}"] = weight
        if beside == path:
            assert part.rank is not None  # who has adapters has a rank
            out, into = weight.shape
            for name, shape in ((LOW, (part.rank, into)), (HIGH, (out, part.rank))):
                stored[f"{layer}.{name}"] = Weight(role=weight.role, name=name, shape=shape)
    if part.rank is not None:
        _check_targets(spec, part)
    trained = {path for path in stored if not _unseen(path)}
    if part.rank is not None:
        trained = {path for path in trained if path.endswith(ADAPTERS)}
    tied = spec.head is not None and spec.head.tied
    for name in part.freeze:
        trained -= _named(name, stored, tied=tied)
    if not trained:
        raise SpecError("freeze", "leaves nothing to train", ",".join(part.freeze), "name less")
    return Tensors(stored=stored, trained=frozenset(trained))


def _unseen(path: str) -> bool:
    return path.startswith(NOT_SEEN) or f".{indexer.BLOCK}." in path


def _check_targets(spec: ModelSpec, part: Part) -> None:
    """Raise `SpecError` for a target that no linear layer is called."""
    every = Part(rank=1, targets=(ALL_LINEAR,))
    known = {
        path.removesuffix(".weight").rpartition(".")[2]
        for path, weight in tensors_by_path(spec).items()
        if every.adapts(path, weight)
    }
    for target in part.targets:
        if target not in known and target != ALL_LINEAR:
            remedy = nearest(target, known, f"choose {', '.join(sorted(known))}")
            raise SpecError("lora_targets", "names no linear layer", target, remedy)


def _named(name: str, paths: Iterable[str], *, tied: bool) -> set[str]:
    """Find the tensors called `name`, or in a module called so: by the whole path, or its end."""
    found = set()
    for path in paths:
        also = [path, f"{HEAD}.weight"] if tied and path == "embed_tokens.weight" else [path]
        if any(_begins(each, name) for each in also):
            found.add(path)
    if not found:
        last = {end for path in paths for end in path.split(".")}
        remedy = nearest(name, last, "`metacount tree` shows the names")
        raise SpecError("freeze", "names nothing of the model that has parameters", name, remedy)
    return found


def _begins(path: str, name: str) -> bool:
    """Tell whether a path, or that of a module around it, is `name` or ends in it."""
    return f".{name}." in f".{path}."
