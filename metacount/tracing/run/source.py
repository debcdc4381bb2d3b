"""What a closed form is read off: a model that is built with symbols for sizes, or with numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypedDict

from torch import nn

from metacount.frozen import frozen
from metacount.spec import Workload
from metacount.tracing.run.count import Amounts
from metacount.tracing.run.sizes import Sizes

if TYPE_CHECKING:
    import sympy

QUANTITIES = (
    "params",
    "active_params",
    "matmul_flops",
    "causal_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes",
    "state_bytes",
)
# Of a forward or of one token: what code runs on experts that a token did not choose.
IDLE = {"matmul_flops": "idle_matmul_flops", "decode_matmul_flops": "idle_decode_matmul_flops"}
OF_PARAMS = frozenset(["params", "active_params"])
IN_BYTES = frozenset(["kv_cache_bytes", "state_bytes"])
OF_TENSORS = ("gradient_bytes", "optimizer_bytes")  # of a step, and of each parameter's size alone


def of_parameters(quantity: str) -> bool:
    """Tell whether a quantity is of what is stored, whatever is run."""
    return quantity in OF_PARAMS or quantity.startswith(OF_TENSORS)


@frozen
class Built:
    """A module, and the whole numbers of its config: more than the asked ones may be others."""

    module: nn.Module
    numbers: dict[str, int]


@frozen
class As:
    """How a model is run with symbols: one sequence as the number 1 (of it torch asks other things
    than of B), as many key/value heads as heads where the model has it so.

    `strict`: an error of ours ends it; else it is one more reason why something is not traced.
    `seconds` of this process a forward with symbols may take.
    """

    one_sequence: bool = False
    tied: bool = False
    strict: bool = False
    seconds: float = 60.0


class Way(TypedDict, total=False):
    """One way to build a model with symbols; `only_run`: B and S alone are letters."""

    hints: dict[str, int]  # other numbers behind the symbols
    skipped: frozenset[str]  # fields that stay numbers
    only_run: bool


class Trace(Protocol):
    """One build with symbols for sizes, and what it was asked so far."""

    sizes: Sizes
    in_sizes: bool  # not only in B and S

    def amounts(
        self, quantity: str, seq_len: int, by_operator: bool
    ) -> tuple[Amounts, tuple[str, ...]]:
        """Return a quantity by role (or operator) and layer, and notes;
        `seq_len` is the hint behind S.
        """
        ...


class Source(Protocol):
    """A model as data and code: all that a form needs to be read and to be checked."""

    has_encoder: bool

    def described(self) -> str:
        """Say whose code this is, with versions."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return the sizes that may be symbols, by their full names."""
        ...

    def layer_fields(self, constants: dict[sympy.Symbol, int]) -> dict[str, int]:
        """Return the numbers that may say how many layers there are of a kind."""
        ...

    def ways(self) -> Iterator[Way]:
        """Yield the ways to build with symbols, best first:
        hints behind them, and fields that stay numbers.
        """
        ...

    def traced(self, way: Way) -> Trace:
        """Build the model with symbols, in one of the ways."""
        ...

    def built(self, change: dict[str, int]) -> Built | None:
        """Build the model with other numbers; None where it cannot be."""
        ...

    def other(self, change: dict[str, int]) -> Source | None:
        """Return the same with other numbers for some sizes; None where no model has them."""
        ...

    def measured(
        self, module: nn.Module, quantity: str, workload: Workload, by_operator: bool
    ) -> dict[str, int] | None:
        """Measure a quantity of a module that was built with numbers, by role (or operator)."""
        ...


def apart(sizes: dict[str, int], names: dict[str, str]) -> dict[str, int]:
    """Choose other hints where there are as many key/value heads as heads:
    that form would be special.

    `names` gives, for a name of the number of key/value heads, that of the number of heads.
    """
    found: dict[str, int] = {}
    if any(name.endswith("kv_lora_rank") for name in sizes):
        return found  # latent attention knows one number of heads
    for name, value in sizes.items():
        last = name.rpartition(".")[2]
        if last in names and value % 2 == 0 and value > 3:
            heads = name.removesuffix(last) + names[last]
            if sizes.get(heads) == value:
                found[name] = value // 2
    return found
