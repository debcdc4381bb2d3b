"""Which tensors of one block have a gradient, followed through its forward: products and norms.

y = x·W has a gradient where x or W has one. Its backward multiplies once for each of the two that
has, and needs x for W's, W for x's.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.forward import Kept, Widths
from metacount.formulas.kept import norm_kept
from metacount.formulas.part import BASE, HIGH, LOW
from metacount.formulas.terms import product
from metacount.frozen import frozen
from metacount.spec.norm import Norms

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from metacount.formulas.terms import Weight


@frozen
class Step:
    """One operation of a forward: its FLOPs, those of its backward, whether that needs anything.

    `result` is the bytes that selective checkpointing keeps of it. A backward needs the factors of
    a product, not its result.
    """

    role: str
    needs: bool
    flops: Dim = 0
    backward: Dim = 0
    result: Dim = 0


class Wires:
    """The steps of one block, or of the ends, as they run, and what is kept of them.

    `local` are its tensors by path, `trained` those that a step updates.
    """

    def __init__(
        self, local: Mapping[str, Weight], trained: Collection[str], widths: Widths, norms: Norms
    ) -> None:
        self.local, self.trained, self.widths, self.norms = local, trained, widths, norms
        self.steps: list[Step] = []
        self.kept: list[Kept] = []

    def linear(self, name: str, x: bool, rows: Dim, reads: str, gradients: set[str]) -> bool:
        """Run a linear layer over rows that have a gradient or not; say whether its result has.

        `reads` is added to the `gradients` that need its input.
        """
        if f"{name}.{LOW}" not in self.local:
            bias = f"{name}.bias" in self.trained
            return self.product(f"{name}.weight", x, rows, reads, gradients) or bias
        # beside an adapter all else is frozen
        low = self.product(f"{name}.{LOW}", x, rows, reads, gradients)
        self.product(f"{name}.{BASE}.weight", x, rows, reads, gradients)
        of_low: set[str] = set()
        high = self.product(f"{name}.{HIGH}", low, rows, HIGH, of_low)
        adapter = self.local[f"{name}.{LOW}"]
        values = rows * adapter.shape[0]
        self.keep([self.activation(adapter.role, "latent of an adapter", values, HIGH)], of_low)
        return high

    def product(
        self, path: str, x: bool, rows: Dim, reads: str, gradients: set[str], role: str = ""
    ) -> bool:
        """Multiply rows with a matrix, or each with one of a stack of matrices.

        The role is the matrix's unless another is given.
        """
        weight, trained = self.local[path], path in self.trained
        if trained:
            gradients.add(reads)
        # 2 FLOPs per multiply-add
        flops = 2 * rows * product(weight.shape[-2:])
        result = rows * weight.shape[-2]
        self.multiply(role or weight.role, flops, (x, trained), result)
        return x or trained

    def multiply(
        self, role: str, flops: Dim, factors: tuple[bool, bool], result: Dim, width: int = 0
    ) -> None:
        """Run a product of two factors, each of which has a gradient or not.

        Its `result` are values of activations unless a width in bytes is said.
        """
        step = Step(
            role=role,
            flops=flops,
            backward=sum(factors) * flops,
            needs=any(factors),
            result=(width or self.widths.value) * result,
        )
        self.steps.append(step)

    def norm(self, name: str, label: str, x: bool, rows: Dim, width: Dim) -> bool:
        """Run a norm over rows of x; say whether its result has a gradient."""
        gradients: set[str] = set()
        flows = self.normed(name, label, x, gradients)
        self.keep(norm_kept(label, rows, width, self.norms, self.widths), gradients)
        return flows

    def normed(self, name: str, label: str, x: bool, gradients: set[str]) -> bool:
        """Say whether what a norm gives has a gradient, and name what needs tensors of it."""
        weight = f"{name}.weight" in self.trained
        gradients.update(f"{label}: {what}" for what, has in (("x", x), ("weight", weight)) if has)
        self.steps.append(Step(role="norm", needs=x or weight))
        return x or weight or f"{name}.bias" in self.trained

    def activation(self, role: str, name: str, values: Dim, *gradients: str) -> Kept:
        """Build the term of a tensor of activations."""
        return Kept(
            role=role, name=name, values=values, width=self.widths.value, gradients=gradients
        )

    def keep(self, terms: list[Kept], gradients: Collection[str]) -> None:
        """Keep what one of these gradients needs."""
        self.kept += needed(terms, gradients)

    @property
    def needs(self) -> bool:
        """Whether the backward needs anything of it."""
        return any(step.needs for step in self.steps)

    def repeated(self) -> list[Step]:
        """List the steps that full checkpointing runs again: those before the last needed one.

        Source: torch.utils.checkpoint with `early_stop`.
        """
        last = max((i for i, step in enumerate(self.steps) if step.needs), default=0)
        return self.steps[:last]


def needed(terms: list[Kept], gradients: Collection[str]) -> list[Kept]:
    """List the terms that one of these gradients needs.

    >>> k = Kept(role="attention", name="keys", values=8, width=2, gradients=("q",))
    >>> needed([k], {"q", "v"}) == [k], needed([k], {"v"})
    (True, [])
    """
    assert all(term.gradients for term in terms)  # who asks has asked check_alike
    return [term for term in terms if any(name in gradients for name in term.gradients)]
