"""Every tensor of a model by its path in the reference module, and which of them a step trains."""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.formulas import ends, indexer, sublayers
from metacount.formulas.covered import check_alike
from metacount.formulas.dim import Dim, is_zero
from metacount.formulas.optimizer import ALL_LINEAR
from metacount.formulas.terms import Weight
from metacount.formulas.trained import HEAD, NOT_SEEN
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.field import altered

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from metacount.spec.stack import Stack

ATTENTION, CROSS, FFN = "self_attn", "cross_attn", "mlp"
# The norms before and after each branch of a block, by placement.
PRE = {
    ATTENTION: ("input_layernorm", ""),
    CROSS: ("cross_attention_layernorm", ""),
    FFN: ("post_attention_layernorm", ""),
}
POST = {
    ATTENTION: ("", "self_attention_layernorm"),
    CROSS: ("", "cross_attention_layernorm"),
    FFN: ("", "feedforward_layernorm"),
}
PLACED = {
    "pre": PRE,
    "post": POST,
    "deep": POST,
    "sandwich": {
        ATTENTION: ("input_layernorm", "post_attention_layernorm"),
        CROSS: ("pre_cross_attention_layernorm", "post_cross_attention_layernorm"),
        FFN: ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    },
    "post_branch": {
        ATTENTION: ("", "post_attention_layernorm"),
        CROSS: ("", "post_cross_attention_layernorm"),
        FFN: ("", "post_feedforward_layernorm"),
    },
    "parallel": {ATTENTION: ("input_layernorm", ""), FFN: ("", "")},
    "parallel_two": {
        ATTENTION: ("input_layernorm", ""),
        FFN: ("post_attention_layernorm", ""),
    },
}
OF_STACK = ("embed_queries.", "embed_proj.")  # of the ends, but inside the stack
LAYERS = "layers"
BASE, LOW, HIGH = "base", "lora_a", "lora_b"  # a frozen linear layer, and its adapter B·A


def norms_of_block(spec: ModelSpec, index: int, *, cross: bool) -> dict[str, tuple[str, str]]:
    """Name the norms before and after each branch of one block; "" where there is none.

    >>> from metacount.catalog import entry
    >>> norms_of_block(entry("llama-7b").spec(), 0, cross=False)["mlp"]
    ('post_attention_layernorm', '')
    """
    norms = spec.last_stack.norms
    found = dict(PLACED[norms.placement])
    if not cross:
        found.pop(CROSS, None)
    if index == 0 and not norms.first:
        found[ATTENTION] = ("", found[ATTENTION][1])
    return found


def tensors_of_block(spec: ModelSpec, index: int, *, cross: bool) -> dict[str, Weight]:
    """Name every tensor of one block, by its path in the block.

    Source: the functions of `sublayers`.

    >>> from metacount.catalog import entry
    >>> block = tensors_of_block(entry("llama-7b").spec(), 0, cross=False)
    >>> block["self_attn.q_proj.weight"].shape, block["input_layernorm.weight"].shape
    ((4096, 4096), (4096,))
    """
    parts = [sublayers.attention_weights(spec)]
    if cross:
        parts.append(sublayers.cross_attention_weights(spec))
    routed = spec.is_moe_layer(index)
    parts.append((sublayers.mixture_weights if routed else sublayers.dense_weights)(spec))
    for names in norms_of_block(spec, index, cross=cross).values():
        parts += [sublayers.width_norm_weights(spec, name) for name in names if name]
    return {w.name: w for part in parts for w in part if not any(is_zero(n) for n in w.shape)}


def stack_name(spec: ModelSpec, part: Stack) -> str:
    """The name of a stack in the module."""
    return "decoder" if part is spec.decoder else "encoder"


def blocks(spec: ModelSpec) -> Iterator[tuple[str, Stack, int, bool]]:
    """Every block in order: its path, its stack, its number, whether it has cross-attention."""
    for part in spec.stacks:
        cross = spec.has_encoder and part is spec.decoder
        for index in range(part.n_layers):
            yield f"{stack_name(spec, part)}.{LAYERS}.{index}", part, index, cross


def tensors_by_path(spec: ModelSpec) -> dict[str, Weight]:
    """Name every tensor of a model whose layers are alike, by its path; a tied one once.

    Experts are one tensor [E, out, in].

    >>> from metacount.catalog import entry
    >>> tensors = tensors_by_path(entry("llama-7b").spec())
    >>> sum(weight.size for weight in tensors.values())
    6738415616
    """
    check_alike(spec)
    found: dict[str, Weight] = {}
    last = stack_name(spec, spec.last_stack)
    for weight in ends.end_weights(spec):
        inside = f"{last}." if weight.name.startswith(OF_STACK) else ""
        found[f"{inside}{weight.name}"] = weight
    for part in spec.stacks:
        for weight in ends.stack_end_weights(spec):
            found[f"{stack_name(spec, part)}.{weight.name}"] = weight
    for path, _, index, cross in blocks(spec):
        for name, weight in tensors_of_block(spec, index, cross=cross).items():
            found[f"{path}.{name}"] = weight
    return {
        path: _stored(weight)
        for path, weight in found.items()
        if not any(is_zero(n) for n in weight.shape)
    }


def _stored(weight: Weight) -> Weight:
    """A tensor as a module stores it: experts in one."""
    if weight.used is None:
        return weight
    return altered(weight, shape=(weight.times, *weight.shape), times=1, used=None, rows="")


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
        """Whether an adapter stands beside a tensor: the matrix of a linear layer, not the head."""
        name = path.removesuffix(".weight")
        linear = path != name and weight.rows and len(weight.shape) == 2 and name != HEAD
        if self.rank is None or not linear:
            return False
        return ALL_LINEAR in self.targets or name.rpartition(".")[2] in self.targets


@frozen
class Tensors:
    """The tensors of a model with its adapters, by path; the paths of those that are trained."""

    stored: dict[str, Weight]
    trained: frozenset[str]

    @property
    def weights(self) -> dict[str, Weight]:
        """Those that are trained."""
        return {path: weight for path, weight in self.stored.items() if path in self.trained}


def chosen_tensors(spec: ModelSpec, part: Part) -> Tensors:
    """Name the tensors of a model, adapters among them, and say which are trained.

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
        beside = f"{layer}.weight" if layer and kind == "bias" else path
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
    _check_targets(spec, part)
    trained = {path for path in stored if not _unseen(path)}
    if part.rank is not None:
        trained = {path for path in trained if path.endswith((f".{LOW}", f".{HIGH}"))}
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
    for target in part.targets if part.rank is not None else ():
        if target not in known and target != ALL_LINEAR:
            remedy = nearest(target, known, f"choose {', '.join(sorted(known))}")
            raise SpecError("lora_targets", "names no linear layer", target, remedy)


def _named(name: str, paths: Iterable[str], *, tied: bool) -> set[str]:
    """The tensors of whatever is called so: its whole path, or the end of one."""
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
    """Whether a path, or a module that it is in, is called so."""
    return f".{name}." in f".{path}."


def size_of(weights: Iterable[Weight]) -> Dim:
    """Values of some tensors, each stored once."""
    return sum(weight.size for weight in weights)
