"""The terms that every count is a sum of: tensors that are stored, and products of activations.

Parameters, active parameters and FLOPs are sums over the same terms, so that a count can be taken
apart: which tensor, of which role, how often stored, how often used.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.frozen import frozen
from metacount.spec.field import altered

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

# What multiplies a matrix in one forward, or how often a product of activations is computed. The
# numbers behind these words are those of a run.
TOKENS = "tokens"  # each new token of each sequence
SOURCE = "source tokens"  # each token that the encoder of an encoder-decoder reads
CACHED = "cached tokens"  # each position whose keys and values are expanded from a latent
SEQUENCES = "sequences"  # once per sequence
POSITIONS = "positions"  # each position attended to, once for all sequences
WINDOWED_POSITIONS = "positions in a window"
PAIRS = "pairs of positions"  # a query and a key that it attends to
WINDOWED_PAIRS = "pairs of positions in a window"
CROSS_PAIRS = "pairs of a position and a source position"
SOURCE_PAIRS = "pairs of source positions"
OF_PAIRS = (PAIRS, WINDOWED_PAIRS, CROSS_PAIRS, SOURCE_PAIRS)


@frozen
class Weight:
    """A stored tensor: its role, its name, its shape, and how many of its kind there are.

    `times` of them are stored, of which one token uses `used` (None: all). `rows` says what it is
    multiplied with: "" where it is added, looked up or multiplied element by element. `split` says
    what its values are for, where a matrix is several in one: they sum to its size. `uses`: how
    often one token is multiplied with one of them (None: once with each that it uses). `cut` is the
    axis that tensor parallelism cuts (None: whole on every rank), in `halves` one after another.
    """

    role: str
    name: str
    shape: tuple[Dim, ...]
    times: Dim = 1
    used: Dim | None = None
    rows: str = ""
    split: tuple[tuple[str, Dim], ...] = ()
    uses: Dim | None = None
    cut: int | None = None
    halves: int = 1

    @property
    def size(self) -> Dim:
        """Values of one such tensor."""
        return product(self.shape)

    def repeated(self, times: Dim, *, rows: Mapping[str, str] | None = None) -> Weight:
        """Repeat the tensor in `times` layers; `rows`: other words for what multiplies it."""
        return Weight(
            role=self.role,
            name=self.name,
            shape=self.shape,
            times=times * self.times,
            used=None if self.used is None else times * self.used,
            rows=(rows or {}).get(self.rows, self.rows),
            split=self.split,
            uses=None if self.uses is None else times * self.uses,
            cut=self.cut,
            halves=self.halves,
        )

    def shared(self, times: Dim, uses: Dim) -> Weight:
        """Repeat the tensor `times` times; a token is multiplied with these `uses` times in all."""
        return altered(self.repeated(times), uses=uses)

    @property
    def params(self) -> Dim:
        """Values that are stored."""
        return self.times * self.size

    @property
    def active(self) -> Dim:
        """Values that one token uses."""
        return self.params if self.used is None else self.used * self.size

    def flops(self, run: Mapping[str, Dim]) -> Dim:
        """Count the tensor's FLOPs, 2 per multiply-add; `run` has the number behind `rows`."""
        values = self.active if self.uses is None else self.uses * self.size
        return 2 * run[self.rows] * values if self.rows else 0


@frozen
class Product:
    """A product of activations with each other, as scores are: `width` multiply-adds, `per` what.

    `times` counts the layers that compute it.
    """

    role: str
    name: str
    width: Dim
    per: str
    times: Dim = 1

    def repeated(self, times: Dim) -> Product:
        """Repeat the product in `times` layers."""
        return Product(
            role=self.role, name=self.name, width=self.width, per=self.per, times=times * self.times
        )

    def flops(self, run: Mapping[str, Dim]) -> Dim:
        """Count the product's FLOPs, 2 per multiply-add; `run` has the number behind `per`."""
        return 2 * run[self.per] * self.times * self.width


def matrix(
    name: str,
    role: str,
    shape: tuple[Dim, Dim],
    rows: str,
    *,
    bias: bool = False,
    split: tuple[tuple[str, Dim], ...] = (),
) -> tuple[Weight, ...]:
    """Build the weight of a linear layer, [outputs, inputs], and with `bias` its bias, [outputs].

    >>> [weight.name for weight in matrix("up_proj", "ffn", (11008, 4096), TOKENS, bias=True)]
    ['up_proj.weight', 'up_proj.bias']
    """
    weight = Weight(role=role, name=f"{name}.weight", shape=shape, rows=rows, split=split)
    if not bias:
        return (weight,)
    return weight, Weight(role=role, name=f"{name}.bias", shape=shape[:1])


def by_role(
    terms: Iterable[Weight | Product], of: Callable[[Any], Dim], roles: Iterable[str] = ()
) -> dict[str, Dim]:
    """Sum what `of` gives for each term, by role; `roles` come first, in order.

    >>> up = Weight(role="ffn", name="up_proj", shape=(11008, 4096), times=32)
    >>> by_role([up], lambda weight: weight.params, ["attention"])
    {'attention': 0, 'ffn': 1442840576}
    """
    found: dict[str, Dim] = dict.fromkeys(roles, 0)
    for term in terms:
        found[term.role] = found.get(term.role, 0) + of(term)
    return found


def product(sizes: Iterable[Dim]) -> Dim:
    """Multiply sizes; give 1 for none.

    >>> product((3, 4096)), product(())
    (12288, 1)
    """
    found: Dim = 1
    for size in sizes:
        found = found * size
    return found


def params_of(weights: Iterable[Weight]) -> Dim:
    """Count the stored parameters of some tensors.

    >>> params_of([Weight(role="ffn", name="up_proj", shape=(11008, 4096), times=32)])
    1442840576
    """
    return sum(weight.params for weight in weights)


def active_params_of(weights: Iterable[Weight]) -> Dim:
    """Count the parameters of some tensors that one token uses.

    >>> active_params_of([Weight(role="moe", name="up_proj", shape=(14336, 4096), times=8, used=2)])
    117440512
    """
    return sum(weight.active for weight in weights)


def flops_of(terms: Iterable[Weight | Product], run: Mapping[str, Dim]) -> Dim:
    """Count the FLOPs of some terms in a run.

    >>> flops_of([Weight(role="ffn", name="up_proj", shape=(11008, 4096), rows=TOKENS)],
    ...          {TOKENS: 128})
    11542724608
    """
    return sum(term.flops(run) for term in terms)


@frozen
class State:
    """A tensor that one layer keeps between tokens, of a size that does not grow with them.

    `bytes_per_value` is its own where the dtype is not that of the run (None: that of the run).
    """

    name: str
    shape: tuple[Dim, ...]
    bytes_per_value: int | None = None

    @property
    def size(self) -> Dim:
        """Values for one sequence and one layer."""
        return product(self.shape)
