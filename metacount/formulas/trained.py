"""What a step trains: the tensors that a loss has a gradient of, or a part of them, or adapters.

With them the optimizer's state, gradients and master weights, which depend on their shapes.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.formulas import ends
from metacount.formulas.block import STORED
from metacount.formulas.dim import Dim, ceil_div, is_symbolic, is_zero, smaller
from metacount.formulas.model import ROLES
from metacount.formulas.pieces import (
    BLOCK,
    LAYERS,
    SHARED,
    counted_weights,
    nominal_pieces,
    remembered,
    walk,
)
from metacount.formulas.tape import (
    BASE,
    HIGH,
    LOW,
    Pass,
    Weight,
    by_role,
    product,
)
from metacount.frozen import frozen
from metacount.spec import ModelSpec
from metacount.spec.field import altered

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


ALL_LINEAR = "all-linear"  # among targets: every linear layer but the output head
ADAPTERS = (f".{LOW}", f".{HIGH}")
# a linear layer though no token meets it: what it multiplies is a product of positions
OF_POSITIONS = "self_attn.relative.r_proj.weight"
OF_STACK = ("embed_queries.", "embed_proj.")  # of the ends, but inside the stack


def trained_tensors(spec: ModelSpec) -> list[tuple[Weight, bool]]:
    """List every tensor that the loss has a gradient of: all but a pooler's and an indexer's.

    An indexer chooses positions, and no gradient passes a choice. Tied ones stand once, experts in
    one tensor [E, out, in].

    Returns: tensors with shapes, and whether each is in a block; their values sum to the model's
    parameters, less those two's.

    >>> from metacount.catalog import entry
    >>> sum(weight.params for weight, _ in trained_tensors(entry("llama-7b").spec()))
    6738415616
    """
    check_reached(spec)
    return remembered(spec, "trained", lambda: _collect(spec))


def check_reached(spec: ModelSpec) -> None:
    """Raise `SpecError` where the loss does not see all parameters: of embeddings that go nowhere.

    Each layer's own embedding is added to all copies of the stream but the first.
    """
    part = spec.last_stack.altup
    alone = part is not None and isinstance(part.n_inputs, int) and part.n_inputs == 1
    if alone and spec.last_stack.layer_inputs is not None:
        rule = "has no formula for training: of one copy, d_per_layer is added to none"
        raise SpecError("n_altup_inputs", rule, 1, "measure it instead, or choose 2 or more")


def _collect(spec: ModelSpec) -> list[tuple[Weight, bool]]:
    found = []
    for inner in (True, False):
        pieces = [piece for piece in nominal_pieces(spec) if (piece.place == BLOCK) is inner]
        for number, weight in counted_weights(spec, pieces):
            if weight.seen and not any(is_zero(n) for n in weight.shape):
                found.append((as_stored(weight).repeated(number), inner))
    return found


def as_stored(weight: Weight) -> Weight:
    """Return a tensor as a module stores it: experts, of which a token uses some, are one."""
    if weight.used is None:
        return weight
    return altered(weight, shape=(weight.times, *weight.shape), times=1, used=None, rows="")


STEP = 4  # bytes of a step counter, a float32 of its own for each tensor
MASTER = 4  # bytes of a master weight, and of the state that belongs to it
BLOCK_VALUES = 256  # values of a state in 8 bits that share a scale
SCALE = 4  # bytes of a scale, a float32
CODES = 4 * 2**8  # bytes of the table of what each code means, a float32 each
CODED = 4096  # values from which on a tensor's state is kept in 8 bits


def kept_values(n: int, *, counted: bool = True) -> Callable[[Weight, int], Dim]:
    """Give an optimizer's state of `n` values for each value: n·c·size, and a step's.

    >>> kept_values(2)(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    180355076
    """
    return lambda weight, width: n * width * weight.size + counted * STEP


def adafactor_state(weight: Weight, width: int) -> Dim:
    """Count the state of Adafactor for one tensor: means over rows and over columns, and a step.

    c·(n / last + n / last but one) + 4 of a matrix or a stack of them; c·n + 4 of a vector

    Returns: bytes.
    Source: Shazeer and Stern 2018, arXiv:1804.04235, algorithm 4; torch.optim, without momentum.

    >>> adafactor_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    30212
    """
    shape = weight.shape
    if len(shape) < 2:
        return width * weight.size + STEP
    return width * (product(shape[:-1]) + product(shape[:-2]) * shape[-1]) + STEP


def in_blocks(size: Dim) -> Dim:
    """Say whether a tensor of so many values has its state in 8 bits: 1, else 0.

    min(1, n // 4096) · (1 + n // 256 − ⌈n / 256⌉)

    Source: torchao's rule: at least 4,096 values, in whole blocks of 256.

    >>> in_blocks(4096), in_blocks(4095), in_blocks(5000)
    (1, 0, 0)
    """
    return smaller(1, size // CODED) * (1 + size // BLOCK_VALUES - ceil_div(size, BLOCK_VALUES))


def adam8bit_state(weight: Weight, width: int) -> Dim:
    """Count the state of AdamW in 8 bits for one tensor: two coded moments, and a step counter.

    A moment has a byte a value, a scale for each block and a table of what the codes mean:
    2·(n + 4·n / 256 + 1024) + 4; where `in_blocks` is 0, it is what AdamW keeps: 2·c·n + 4

    Returns: bytes.
    Source: Dettmers et al. 2022, arXiv:2110.02861, sec. 2; torchao.optim.AdamW8bit of 0.18.

    >>> adam8bit_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    91588612
    """
    size = weight.size
    # of ints, rounded down only where it does not count
    blocks = size / BLOCK_VALUES if is_symbolic(size) else size // BLOCK_VALUES
    coded, plain = 2 * (size + SCALE * blocks + CODES), 2 * width * size
    return plain + in_blocks(size) * (coded - plain) + STEP


# The state of one tensor: of a matrix in a block, and of any other.
adamw_state = kept_values(2)
OPTIMIZERS: dict[str, tuple[Callable[[Weight, int], Dim], Callable[[Weight, int], Dim]]] = {
    "adamw": (adamw_state, adamw_state),
    "sgd": (kept_values(0, counted=False), kept_values(0, counted=False)),
    "sgd-momentum": (kept_values(1, counted=False), kept_values(1, counted=False)),
    "adagrad": (kept_values(1), kept_values(1)),
    "adafactor": (adafactor_state, adafactor_state),
    "muon": (kept_values(1, counted=False), adamw_state),
    "adam8bit": (adam8bit_state, adam8bit_state),
}


def state_bytes(weight: Weight, *, optimizer: str, width: int, inner: bool) -> Dim:
    """Count an optimizer's state for one tensor, `inner` to the blocks or not.

    adamw         two moments, their m and v, and a step counter: 2·c·n + 4
    sgd           nothing
    sgd-momentum  its velocity: c·n
    adagrad       a sum of squares and a step counter: c·n + 4
    adafactor     `adafactor_state`
    muon          of a matrix of a block its momentum, c·n, of what else there is adamw's
    adam8bit      `adam8bit_state`

    Returns: bytes.
    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2 (adamw); Robbins and Monro
    1951, doi:10.1214/aoms/1177729586 (sgd); Polyak 1964, doi:10.1016/0041-5553(64)90137-5
    (momentum); Duchi et al. 2011, jmlr.org/papers/v12/duchi11a.html, sec. 1.1 (adagrad); Jordan et
    al. 2024, kellerjordan.github.io/posts/muon; torch.optim.

    >>> up = Weight(role="ffn", name="up_proj", shape=(11008, 4096))  # LLaMA-7B
    >>> kinds = ("adamw", "sgd", "sgd-momentum", "adagrad", "muon")
    >>> [state_bytes(up, optimizer=kind, width=2, inner=True) for kind in kinds]
    [180355076, 0, 90177536, 90177540, 90177536]
    """
    if optimizer not in OPTIMIZERS:
        remedy = nearest(optimizer, OPTIMIZERS, f"choose {', '.join(OPTIMIZERS)}")
        raise SpecError("optimizer", "has no formula", optimizer, remedy)
    of_matrix, of_other = OPTIMIZERS[optimizer]
    return (of_matrix if inner and len(weight.shape) == 2 else of_other)(weight, width)


def optimizer_bytes_by_role(
    spec: ModelSpec,
    *,
    optimizer: str = "adamw",
    bytes_per_value: int,
    master_weights: bool = False,
    tensors: Tensors | None = None,
) -> dict[str, Dim]:
    """Count the state of an optimizer by role: that of each tensor, as many as there are.

    `tensors`: what is trained, where that is a part of the model.

    State is kept in the parameters' type; with master weights in float32; by `adam8bit` in 8 bits
    where `in_blocks` says so. Muon is for the matrices of the blocks, AdamW for the rest: tables,
    head, vectors, experts stacked in one tensor.

    Returns: bytes of every tensor of the state, master weights apart.
    Source: the optimizers' own functions.
    Not counted: what a step needs while it runs.

    >>> from metacount.catalog import entry
    >>> llama = entry("llama-7b").spec()
    >>> sum(optimizer_bytes_by_role(llama, bytes_per_value=2).values())  # 4 bytes × 6738415616 + …
    26953663628
    """
    width = MASTER if master_weights else bytes_per_value
    found: dict[str, Dim] = dict.fromkeys(ROLES, 0)
    for weight, inner in trained_tensors(spec) if tensors is None else tensors.trained_weights:
        state = state_bytes(weight, optimizer=optimizer, width=width, inner=inner)
        found[weight.role] += weight.times * state
    return found


def gradient_bytes_by_role(spec: ModelSpec, *, bytes_per_value: int) -> dict[str, Dim]:
    """Count the gradients by role: a value for each that is trained, c·P.

    Returns: bytes, all gradients at once; a pooler has none, the loss does not see it.
    Source: `trained.trained_tensors`.

    >>> from metacount.catalog import entry
    >>> sum(gradient_bytes_by_role(entry("llama-7b").spec(), bytes_per_value=2).values())
    13476831232
    """
    weights = (weight for weight, _ in trained_tensors(spec))
    return by_role(weights, lambda weight: bytes_per_value * weight.params, ROLES)


@frozen
class Part:
    """Which part of a model a step trains: all but what is frozen, or adapters of low rank.

    `freeze` are paths or last names of modules and parameters. With a `rank` all is frozen but the
    adapters beside the linear layers whose last names are `targets`.
    """

    rank: int | None = None
    targets: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()


WHOLE = Part()


@frozen
class Tensors:
    """The tensors of a model with its adapters, by path; the paths of those that are trained."""

    stored: dict[str, Weight]
    trained: frozenset[str]

    @property
    def trained_weights(self) -> list[tuple[Weight, bool]]:
        """The tensors that are trained, and whether each is in a block."""
        return [(self.stored[path], is_inner(path)) for path in self.trained]

    @property
    def adapter_params(self) -> Dim:
        """Values of adapters, those among them that have no gradient."""
        return sum(w.size for path, w in self.stored.items() if path.endswith(ADAPTERS))


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
    structure = structure or spec
    found: dict[str, Weight] = {}
    altup = structure.last_stack.altup
    for piece in walk(spec, Pass(batch_size=2, seq_len=2), structure=structure):
        stack = "encoder" if piece.of_encoder or spec.decoder is None else "decoder"
        lead = stack if piece.index is None else f"{stack}.{LAYERS}.{piece.index}"
        for weight in piece.tape.weights:
            if any(is_zero(n) for n in weight.shape):
                continue
            name, path = weight.name, f"{lead}.{weight.name}"
            if name.startswith(STORED):
                assert piece.index is not None  # a block uses it
                number = structure.last_stack.shared_of(piece.index)
                path = f"{stack}.{SHARED}.{number}.{name.removeprefix(STORED)}"
            elif name.startswith(ends.OF_MODEL) and not name.startswith(OF_STACK):
                path = name
            paths = [path]
            if altup is not None and ".copies." in path:  # in a list of modules
                path, _, kind = path.rpartition(".")
                paths = [f"{path}.{number}.{kind}" for number in range(altup.n_inputs - 1)]
            for each in paths:
                found.setdefault(each, altered(as_stored(weight), times=1))
    return found


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
    plain = tensors_by_path(spec)
    adapted = set() if part.rank is None else _adapted_layers(plain, part.targets)
    stored: dict[str, Weight] = {}
    for path, weight in plain.items():
        layer, _, kind = path.rpartition(".")
        if layer not in adapted:
            stored[path] = weight
            continue
        stored[f"{layer}.{BASE}.{kind}"] = weight
        if kind == "weight":
            out, into = weight.shape
            for name, shape in ((LOW, (part.rank, into)), (HIGH, (out, part.rank))):
                made = Weight(role=weight.role, name=name, shape=shape, seen=weight.seen)
                stored[f"{layer}.{name}"] = made
    trained = {path for path, weight in stored.items() if weight.seen}
    if part.rank is not None:
        trained = {path for path in trained if path.endswith(ADAPTERS)}
    tied = spec.head is not None and spec.head.tied
    for name in part.freeze:
        trained -= _named(name, stored, tied=tied)
    if not trained:
        raise SpecError("freeze", "leaves nothing to train", ",".join(part.freeze), "name less")
    return Tensors(stored=stored, trained=frozenset(trained))


def _adapted_layers(tensors: dict[str, Weight], targets: tuple[str, ...]) -> set[str]:
    """Find the linear layers with these last names, the output head apart.

    Raises `SpecError` for a target that no linear layer is called.
    """
    linear = {
        path.removesuffix(".weight")
        for path, weight in tensors.items()
        if (weight.rows or path.endswith(OF_POSITIONS)) and len(weight.shape) == 2
    } - {ends.HEAD}
    known = {layer.rpartition(".")[2] for layer in linear}
    for target in targets:
        if target not in known and target != ALL_LINEAR:
            remedy = nearest(target, known, f"choose {', '.join(sorted(known))}")
            raise SpecError("lora_targets", "names no linear layer", target, remedy)
    return (
        linear
        if ALL_LINEAR in targets
        else {layer for layer in linear if layer.rpartition(".")[2] in targets}
    )


def _named(name: str, paths: Iterable[str], *, tied: bool) -> set[str]:
    """Find the tensors called `name`, or in a module called so: by the whole path, or its end."""
    found = set()
    for path in paths:
        also = [path, f"{ends.HEAD}.weight"] if tied and path == "embed_tokens.weight" else [path]
        if any(f".{name}." in f".{each}." for each in also):
            found.add(path)
    if not found:
        last = {end for path in paths for end in path.split(".")}
        remedy = nearest(name, last, "`metacount tree` shows the names")
        raise SpecError("freeze", "names nothing of the model that has parameters", name, remedy)
    return found
