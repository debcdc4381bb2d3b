"""The tensors of a model by path, and which of them a step trains: all but what is frozen, or
adapters of low rank.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.formulas import ends
from metacount.formulas.block import STORED, Given, Layer, layer_of, run_block
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.optimizer import state_bytes
from metacount.formulas.pieces import Sizes, run_of, stream
from metacount.formulas.tape import BASE, HIGH, LOW, Store, Tape, Tensor
from metacount.formulas.terms import SOURCE, TOKENS, Weight
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.field import altered

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.spec.stack import Stack

ALL_LINEAR = "all-linear"  # among targets: every linear layer but the output head
ADAPTERS = (f".{LOW}", f".{HIGH}")
# a linear layer though no token meets it: what it multiplies is a product of positions
OF_POSITIONS = "self_attn.relative.r_proj.weight"
LAYERS, SHARED = "layers", "shared_blocks"


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
        linear = multiplies and len(weight.shape) == 2 and name != ends.HEAD
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
    return path.split(".")[1] in (LAYERS, SHARED)


def tensors_by_path(spec: ModelSpec, structure: ModelSpec | None = None) -> dict[str, Weight]:
    """List every tensor of a model, by its path in the reference module; a tied one once.

    Experts are one tensor [E, out, in]. `structure` is the same spec with numbers for sizes, where
    `spec` has letters.

    >>> from metacount.catalog import entry
    >>> tensors = tensors_by_path(entry("llama-7b").spec())
    >>> sum(weight.size for weight in tensors.values())
    6738415616
    """
    return {path: weight for path, (weight, _) in _recorded(spec, structure or spec).items()}


def _recorded(spec: ModelSpec, structure: ModelSpec) -> dict[str, tuple[Weight, bool]]:
    """List every tensor by path, and whether the loss does not see it."""
    found: dict[str, tuple[Weight, bool]] = {}

    def add(tape: Tape, lead: str, shared: str = "") -> None:
        for weight in tape.weights:
            if any(is_zero(n) for n in weight.shape):
                continue
            name, unseen = weight.name, weight.name in tape.unseen
            if name.startswith(STORED):
                path = f"{shared}.{name.removeprefix(STORED)}"
            elif name.startswith(ends.OF_MODEL) and not name.startswith(OF_STACK):
                path = name
            else:
                path = f"{lead}.{name}"
            for each in _listed(path, structure):
                found.setdefault(each, (_stored(weight), unseen))

    for stack, numbered in zip(spec.stacks, structure.stacks, strict=True):
        of_encoder = spec.has_encoder and stack is not spec.decoder
        name, word = stack_name(spec, stack), SOURCE if of_encoder else TOKENS
        run = run_of(spec, Sizes(batch_size=2, seq_len=2, source_len=2), of_encoder=of_encoder)
        tape = Tape(run)
        ends.embed(tape, spec, stack, word)
        ends.final_norm(tape, stack, stream(tape, spec, word))
        if not of_encoder:
            ends.unembed(tape, spec, stream(tape, spec, word))
        add(tape, name)
        memory = Tensor(Store(1, spec.d_model, 2), spec.d_model, SOURCE, True)
        known: dict[Layer, Tape] = {}
        for index in range(numbered.n_layers):
            layer = layer_of(structure, numbered, index)
            if layer not in known:
                known[layer] = tape = Tape(run)
                run_block(tape, spec, layer, stream(tape, spec, word), Given(memory=memory))
            number = numbered.shared_of(index)
            add(known[layer], f"{name}.{LAYERS}.{index}", f"{name}.{SHARED}.{number}")
    return found


OF_STACK = ("embed_queries.", "embed_proj.")  # of the ends, but inside the stack


def stack_name(spec: ModelSpec, stack: Stack) -> str:
    """Name a stack as the module does: "decoder" or "encoder"."""
    return "decoder" if stack is spec.decoder else "encoder"


def _listed(path: str, structure: ModelSpec) -> list[str]:
    """List a tensor's path, or the paths of several that stand in a list."""
    altup = structure.last_stack.altup
    if altup is None or ".copies." not in path:
        return [path]
    name, _, kind = path.rpartition(".")
    return [f"{name}.{number}.{kind}" for number in range(altup.n_inputs - 1)]


def _stored(weight: Weight) -> Weight:
    """Return a tensor as a module stores it: experts stacked in one."""
    if weight.used is None:
        return altered(weight, times=1)
    return altered(weight, shape=(weight.times, *weight.shape), times=1, used=None, rows="")


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
    unseen: set[str] = set()

    def store(path: str, weight: Weight, is_unseen: bool) -> None:
        stored[path] = weight
        if is_unseen:
            unseen.add(path)

    for path, (weight, is_unseen) in _recorded(spec, spec).items():
        layer, _, kind = path.rpartition(".")
        beside = f"{layer}.weight"
        matrix = weight if beside == path else stored.get(f"{layer}.{BASE}.weight")
        if matrix is None or not part.adapts(beside, matrix):
            store(path, weight, is_unseen)
            continue
        store(f"{layer}.{BASE}.{kind}", weight, is_unseen)
        if beside == path:
            assert part.rank is not None
            out, into = weight.shape
            for name, shape in ((LOW, (part.rank, into)), (HIGH, (out, part.rank))):
                adapter = Weight(role=weight.role, name=name, shape=shape)
                store(f"{layer}.{name}", adapter, is_unseen)
    if part.rank is not None:
        _check_targets(spec, part)
    trained = {path for path in stored if path not in unseen}
    if part.rank is not None:
        trained = {path for path in trained if path.endswith(ADAPTERS)}
    tied = spec.head is not None and spec.head.tied
    for name in part.freeze:
        trained -= _named(name, stored, tied=tied)
    if not trained:
        raise SpecError("freeze", "leaves nothing to train", ",".join(part.freeze), "name less")
    return Tensors(stored=stored, trained=frozenset(trained))


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
        also = [path, f"{ends.HEAD}.weight"] if tied and path == "embed_tokens.weight" else [path]
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
