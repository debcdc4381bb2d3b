"""The terms that every count is a sum of: tensors that are stored, and products of activations.

Parameters, active parameters and FLOPs are sums over the same terms, so that a count can be taken
apart: which tensor, of which role, how often stored, how often used.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What multiplies a matrix in one forward, or how often a product of activations is computed. The
# numbers behind these words are those of a run.
TOKENS = "tokens"  # each new token of each sequence
SOURCE = "source tokens"  # each token that an encoder reads
CACHED = "cached tokens"  # each position whose keys and values are expanded from a latent
SEQUENCES = "sequences"  # once per sequence
POSITIONS = "positions"  # once per forward and position, not per sequence


@frozen
class Weight:
    """A stored tensor: its role, its name, its shape, and how many of its kind there are.

    `times` of them are stored, of which one token uses `used` (None: all). `rows` says what it is
    multiplied with: "" where it is added, looked up or multiplied element by element.
    """

    role: str
    name: str
    shape: tuple[Dim, ...]
    times: Dim = 1
    used: Dim | None = None
    rows: str = ""

    @property
    def size(self) -> Dim:
        """Values of one such tensor."""
        return product(self.shape)

    @property
    def params(self) -> Dim:
        """Values that are stored."""
        return self.times * self.size

    @property
    def active(self) -> Dim:
        """Values that one token uses."""
        return self.params if self.used is None else self.used * self.size

    def flops(self, run: Mapping[str, Dim]) -> Dim:
        """FLOPs of multiplying with it, 2 per multiply-add; `run` has the numbers of `rows`."""
        return 2 * run[self.rows] * self.active if self.rows else 0


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

    def flops(self, run: Mapping[str, Dim]) -> Dim:
        """FLOPs of it, 2 per multiply-add; `run` has the number of what `per` names."""
        return 2 * run[self.per] * self.times * self.width


def product(sizes: Iterable[Dim]) -> Dim:
    """The product of sizes; 1 of none.

    >>> product((3, 4096)), product(())
    (12288, 1)
    """
    found: Dim = 1
    for size in sizes:
        found = found * size
    return found


def params_of(weights: Iterable[Weight]) -> Dim:
    """Stored parameters of some tensors.

    >>> params_of([Weight(role="ffn", name="up_proj", shape=(11008, 4096), times=32)])
    1442840576
    """
    return sum(weight.params for weight in weights)


def active_params_of(weights: Iterable[Weight]) -> Dim:
    """Parameters of some tensors that one token uses.

    >>> active_params_of([Weight(role="moe", name="up_proj", shape=(14336, 4096), times=8, used=2)])
    117440512
    """
    return sum(weight.active for weight in weights)


def flops_of(terms: Iterable[Weight | Product], run: Mapping[str, Dim]) -> Dim:
    """FLOPs of some terms in a run.

    >>> flops_of([Weight(role="ffn", name="up_proj", shape=(11008, 4096), rows=TOKENS)],
    ...          {TOKENS: 128})
    11542724608
    """
    return sum(term.flops(run) for term in terms)
