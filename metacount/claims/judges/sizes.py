"""Claims about sizes of a model: the catalog has them from its source; the formulas count."""

from __future__ import annotations

from typing import Any

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import model_of, spec_of, value
from metacount.units import exact


def two_stacks(claim: Claim) -> Finding:
    """The fields hold, and `n_layers` is said of a model that may have two stacks of them."""
    spec = spec_of(claim)
    different = [name for name, said in claim.claimed.items() if getattr(spec, name) != said]
    both = value(spec, "params")
    n = spec.n_layers
    shown = f"{spec.n_encoder_layers} + {n}"
    half = spec.replace(n_layers=n - n // 2, n_encoder_layers=n // 2) if spec.has_encoder else spec
    verdict = WRONG if different else CONDITIONAL if spec.has_encoder else RIGHT
    published = model_of(claim).published.params
    values: dict[str, Any] = {"half": value(half, "params"), "published": published}
    return Finding(
        verdict=verdict,
        says="All of it holds"
        + (f", but that its {n} layers are {shown} blocks." if spec.has_encoder else ".")
        if not different
        else f"Not so: {', '.join(f'{name} is {getattr(spec, name)}' for name in different)}.",
        correct=", ".join(f"{name} {getattr(spec, name)}" for name in claim.claimed)
        + (f", n_encoder_layers {spec.n_encoder_layers}" if spec.has_encoder else ""),
        computation=(
            *(f"{name}: {getattr(spec, name)}, stated {said}" for name, said in
              claim.claimed.items()),
            f"{shown} blocks: {exact(both)}",
            f"{n} blocks in all: {exact(values['half'])}",
            f"published: {exact(published) if published is not None else 'no exact count'}",
        ),
        values=values,
        witness="formula; catalog (published count)",
        condition=f"{n} layers means {spec.n_encoder_layers} in the encoder and {n} in the "
        "decoder; the rest holds as it stands",
    )  # fmt: skip


def fields(claim: Claim) -> Finding:
    """Sizes of a model, exactly."""
    spec = spec_of(claim)
    found = {name: getattr(spec, name) for name in claim.claimed}
    different = {name: said for name, said in claim.claimed.items() if found[name] != said}
    # what a model does not have is None in its spec
    found = {name: "none" if size is None else size for name, size in found.items()}
    lines = [f"{name}: {found[name]}, stated {said}" for name, said in claim.claimed.items()]
    if spec.is_moe:
        lines.append(f"n_shared_experts: {spec.n_shared_experts}")
    return Finding(
        verdict=WRONG if different else RIGHT,
        says="It is so." if not different else "In fact "
        + ", ".join(f"{name} is {found[name]}" for name in different) + ".",
        correct=", ".join(f"{name} {size}" for name, size in found.items()),
        computation=tuple(lines),
        values={},
        witness="catalog",
    )  # fmt: skip
