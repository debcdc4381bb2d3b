"""What a training step stores beside parameters: gradients, an optimizer's state, master weights.

Optimizers are those of torch.optim, and torchao's AdamW8bit, with the tensors they really keep.
"""

from __future__ import annotations

from metacount.errors import SpecError, nearest
from metacount.formulas.dim import Dim, ceil_div, is_symbolic, smaller
from metacount.formulas.model import ROLES
from metacount.formulas.terms import Weight, params_of, product
from metacount.formulas.trained import trained_tensors
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

STEP = 4  # bytes of a step counter, a float32 of its own for each tensor
MASTER = 4  # bytes of a master weight, and of the state that belongs to it
BLOCK = 256  # values of a state in 8 bits that share a scale
SCALE = 4  # bytes of a scale, a float32
CODES = 4 * 2**8  # bytes of the table of what each code means, a float32 each
CODED = 4096  # values from which on a tensor's state is kept in 8 bits


def adamw_state(weight: Weight, width: int) -> Dim:
    """Count the state of AdamW for one tensor: two moments of its size, and a step counter.

    2·c·n + 4

    Returns: bytes.
    Source: Loshchilov and Hutter 2017, arXiv:1711.05101, algorithm 2, their m and v; torch.optim.

    >>> adamw_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    180355076
    """
    return 2 * width * weight.size + STEP


def sgd_state(weight: Weight, width: int) -> Dim:
    """Count the state of SGD without momentum for one tensor: none.

    Source: Robbins and Monro 1951, doi:10.1214/aoms/1177729586; torch.optim.
    """
    return 0


def momentum_state(weight: Weight, width: int) -> Dim:
    """Count the state of SGD with momentum for one tensor: its velocity, c·n.

    Source: Polyak 1964, doi:10.1016/0041-5553(64)90137-5; torch.optim.

    >>> momentum_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    90177536
    """
    return width * weight.size


def adagrad_state(weight: Weight, width: int) -> Dim:
    """Count the state of Adagrad for one tensor: a sum of squares of its size, and a step counter.

    c·n + 4

    Returns: bytes.
    Source: Duchi et al. 2011, jmlr.org/papers/v12/duchi11a.html, sec. 1.1; torch.optim.

    >>> adagrad_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    90177540
    """
    return width * weight.size + STEP


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


def muon_state(weight: Weight, width: int) -> Dim:
    """Count the state of Muon for one matrix: its momentum, c·n, and no step counter.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon; torch.optim.

    >>> muon_state(Weight(role="ffn", name="up_proj", shape=(11008, 4096)), 2)  # LLaMA-7B
    90177536
    """
    return width * weight.size


def in_blocks(size: Dim) -> Dim:
    """Say whether a tensor of so many values has its state in 8 bits: 1, else 0.

    min(1, n // 4096) · (1 + n // 256 − ⌈n / 256⌉)

    Source: torchao's rule: at least 4,096 values, in whole blocks of 256.

    >>> in_blocks(4096), in_blocks(4095), in_blocks(5000)
    (1, 0, 0)
    """
    return smaller(1, size // CODED) * (1 + size // BLOCK - ceil_div(size, BLOCK))


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
    blocks = size / BLOCK if is_symbolic(size) else size // BLOCK
    coded, plain = 2 * (size + SCALE * blocks + CODES), 2 * width * size
    return plain + in_blocks(size) * (coded - plain) + STEP


# The state of one tensor: of a matrix in a block, and of any other.
OPTIMIZERS: dict[str, tuple[Callable[[Weight, int], Dim], Callable[[Weight, int], Dim]]] = {
    "adamw": (adamw_state, adamw_state),
    "sgd": (sgd_state, sgd_state),
    "sgd-momentum": (momentum_state, momentum_state),
    "adafactor": (adafactor_state, adafactor_state),
    "muon": (muon_state, adamw_state),
    "adam8bit": (adam8bit_state, adam8bit_state),
}


def check_optimizer(optimizer: str) -> None:
    """Raise `SpecError` for an optimizer without a formula."""
    if optimizer not in OPTIMIZERS:
        remedy = nearest(optimizer, OPTIMIZERS, f"choose {', '.join(OPTIMIZERS)}")
        raise SpecError("optimizer", "has no formula", optimizer, remedy)


def state_bytes(weight: Weight, *, optimizer: str, width: int, inner: bool) -> Dim:
    """Count an optimizer's state for one tensor, `inner` to the blocks or not.

    Source: the optimizers' own functions.
    """
    check_optimizer(optimizer)
    of_matrix, of_other = OPTIMIZERS[optimizer]
    return (of_matrix if inner and len(weight.shape) == 2 else of_other)(weight, width)


def optimizer_bytes_by_role(
    spec: ModelSpec, *, optimizer: str = "adamw", bytes_per_value: int, master_weights: bool = False
) -> dict[str, Dim]:
    """Count the state of an optimizer by role: that of each tensor, as many as there are.

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
    tensors = trained_tensors(spec)
    found: dict[str, Dim] = dict.fromkeys(ROLES, 0)
    for weights, inner in ((tensors.inner, True), (tensors.ends, False)):
        for weight in weights:
            state = state_bytes(weight, optimizer=optimizer, width=width, inner=inner)
            add(found, weight.role, weight.times * state)
    return found


def gradient_bytes_by_role(spec: ModelSpec, *, bytes_per_value: int) -> dict[str, Dim]:
    """Count the gradients by role: a value for each that is trained, c·P.

    Returns: bytes, all gradients at once; a pooler has none, the loss does not see it.
    Source: `trained.trained_tensors`.

    >>> from metacount.catalog import entry
    >>> sum(gradient_bytes_by_role(entry("llama-7b").spec(), bytes_per_value=2).values())
    13476831232
    """
    found: dict[str, Dim] = dict.fromkeys(ROLES, 0)
    for weight in trained_tensors(spec).all:
        add(found, weight.role, bytes_per_value * weight.params)
    return found


def master_bytes(spec: ModelSpec) -> Dim:
    """Count the float32 copies of the parameters that an optimizer updates: 4·P.

    Source: Micikevicius et al. 2017, arXiv:1710.03740, sec. 3.1.

    >>> from metacount.catalog import entry
    >>> master_bytes(entry("llama-7b").spec())
    26953662464
    """
    return MASTER * params_of(trained_tensors(spec).all)


def add(total: dict[str, Dim], role: str, count: Dim) -> None:
    """Add a count to its role."""
    total[role] += count
