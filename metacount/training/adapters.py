"""What of a model is trained: all, all but what is frozen, or adapters of low rank beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from metacount.errors import InputError, nearest, shown
from metacount.training.setup import ALL_LINEAR, Setup


class Adapted(nn.Module):
    """A frozen linear layer with an adapter: W·x + B·(A·x).

    Hu et al. 2021, arXiv:2106.09685, eq. 3; its scale α/r multiplies B, so that no product of its
    own is kept. A is [rank, in], B [out, rank], in the layer's type. Its sizes are the layer's, for
    modules that ask for them.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        self.lora_a = nn.Parameter(base.weight.new_zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Compute W·x + B·(A·x): [..., in] -> [..., out]."""
        low = nn.functional.linear(x, self.lora_a)
        out: Tensor = self.base(x) + nn.functional.linear(low, self.lora_b)
        return out


@contextmanager
def trainable(model: nn.Module, setup: Setup, head: nn.Module | None) -> Iterator[None]:
    """Let only parameters that a setup trains require gradients inside; undo that afterwards."""
    before = {id(p): (p, p.requires_grad) for p in model.parameters()}
    changed: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        if setup.lora_rank is not None:
            for p, _ in before.values():
                p.requires_grad_(False)
            changed += _adapt(model, setup, head)
        _freeze(model, setup.freeze)
        yield
    finally:
        for owner, name, base in changed:
            setattr(owner, name, base)
        for p, required in before.values():
            p.requires_grad_(required)


def _adapt(
    model: nn.Module, setup: Setup, head: nn.Module | None
) -> list[tuple[nn.Module, str, nn.Module]]:
    assert setup.lora_rank is not None
    linear = [
        (owner, name, child)
        for owner in list(model.modules())
        for name, child in owner.named_children()
        if isinstance(child, nn.Linear) and child is not head
    ]
    known = {name for _, name, _ in linear}
    missing = [t for t in setup.lora_targets if t not in known and t != ALL_LINEAR]
    if missing or not linear:
        names = ", ".join(sorted(known)[:12]) or "it has none"
        raise InputError(
            f"lora_targets: no linear layer is called {shown(missing[0] if missing else 'so')}; "
            f"{nearest(missing[0], known, '') if missing else ''} {names}, or {ALL_LINEAR}".replace(
                "  ", " "
            )
        )
    chosen = [
        one for one in linear if ALL_LINEAR in setup.lora_targets or one[1] in setup.lora_targets
    ]
    made: dict[int, Adapted] = {}
    for owner, name, base in chosen:
        if id(base) not in made:
            made[id(base)] = Adapted(base, setup.lora_rank)
        setattr(owner, name, made[id(base)])
    return list(chosen)


def _freeze(model: nn.Module, names: tuple[str, ...]) -> None:
    own = [path.split(".") for path, _ in model.named_parameters(remove_duplicate=False)]
    # what has parameters, and they themselves
    paths = {".".join(parts[: n + 1]) for parts in own for n in range(len(parts))}
    for name in names:
        frozen = [p for p in paths if p == name or p.endswith(f".{name}")]
        if not frozen:
            close = nearest(
                name, {part for parts in own for part in parts}, "`metacount tree` shows them"
            )
            said = f"nothing of the model with parameters is called {shown(name)}"
            raise InputError(f"freeze: {said}; {close}")
        for path, parameter in model.named_parameters(remove_duplicate=False):
            if any(path == start or path.startswith(f"{start}.") for start in frozen):
                parameter.requires_grad_(False)
