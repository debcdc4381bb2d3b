"""Claims about what several models have in common: a family, or the whole catalog."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import model_of, models, percent, spec_of, value
from metacount.formulas.model import params_by_role
from metacount.units import exact, short

SHARES = ("ffn", "attention", "rest")


def catalog_shares(claim: Claim) -> Finding:
    """FFN, attention and the rest have such shares. Options: `smallest`, `largest`, `about`.

    About means: at most `about` away. The rest has to be under its share.
    """
    options = claim.options
    low, high, about = (labels.parse(options[k]).value for k in ("smallest", "largest", "about"))
    said = {name: labels.parse(text).value for name, text in claim.claimed.items()}
    shares, sizes = {}, {}
    for entry, spec in models():
        roles = params_by_role(spec)
        total = sum(roles.values())
        if spec.kind != "decoder" or spec.is_moe or not low <= total <= high:
            continue
        ffn, attention = Fraction(roles["ffn"], total), Fraction(roles["attention"], total)
        shares[entry.id] = {"ffn": ffn, "attention": attention, "rest": 1 - ffn - attention}
        sizes[entry.id] = total
    if not shares:
        raise ValueError(f"no dense decoder from {options['smallest']} to {options['largest']}")
    holds = [
        id
        for id, share in shares.items()
        if share["rest"] < said["rest"]
        and all(abs(share[name] - said[name]) <= about for name in ("ffn", "attention"))
    ]
    told = []
    for name in SHARES:
        first, last = (pick(shares, key=lambda id: shares[id][name]) for pick in (min, max))
        told.append(
            f"{name.replace('ffn', 'FFN')} from {percent(shares[first][name])} ({first}) to "
            f"{percent(shares[last][name])} ({last})"
        )
    n, met = len(shares), ", ".join(holds) or "none of them"
    return Finding(
        verdict=RIGHT if len(holds) == n else CONDITIONAL if holds else WRONG,
        says=f"In {n} dense decoders of the catalog from {options['smallest']} to "
        f"{options['largest']}: {'; '.join(told)}. "
        f"The stated shares are met, within {options['about']} each, by {met}.",
        correct="; ".join(told),
        computation=tuple(
            f"{id} ({short(sizes[id])}): "
            + ", ".join(f"{name} {percent(shares[id][name])}" for name in SHARES)
            for id in sorted(shares, key=lambda id: sizes[id])
        ),
        values={},
        witness="formula, over the catalog",
        condition=f"the model is one of {met}",
    )


def same_top_k(claim: Claim) -> Finding:
    """Several models use the same k. Options: `models`."""
    entries = [catalog.entry(name) for name in claim.options["models"]]
    specs = {entry.name: entry.spec() for entry in entries}
    holds = [name for name, spec in specs.items() if spec.top_k == claim.claimed]
    told = ", ".join(f"{name} {spec.top_k}" for name, spec in specs.items())
    return Finding(
        verdict=RIGHT if len(holds) == len(specs) else WRONG,
        says=f"Experts per token: {told}. It is so for {', '.join(holds) or 'none of them'}.",
        correct=told,
        computation=tuple(
            f"{name}: {spec.top_k} of {spec.n_experts} experts of width {spec.d_ff_expert}"
            + (f", and {spec.n_shared_experts} shared" if spec.n_shared_experts else "")
            for name, spec in specs.items()
        ),
        values={},
        witness="catalog",
    )


def expert_shares(claim: Claim) -> Finding:
    """Experts are over a share of all parameters, and about a share of the active ones, in a model
    and in a smaller one of its family. Options: `also_name`, `also_set`.

    About means: rounded to the digits of the claim.
    """
    spec = spec_of(claim)
    least = labels.parse(claim.claimed["total"].removeprefix("over "))
    about = labels.parse(claim.claimed["active"].removeprefix("about "))
    models = {
        model_of(claim).name: spec,
        claim.options["also_name"]: spec.replace(**claim.options["also_set"]),
    }
    holds, told, lines = [], [], []
    for name, sizes in models.items():
        of_all = Fraction(value(sizes, "experts"), value(sizes, "params"))
        of_active = Fraction(value(sizes, "active_experts"), value(sizes, "active_params"))
        over, near = of_all > least.value, about.holds(of_active)
        holds.append(over and near)
        told.append(
            f"{name}: {percent(of_all, 2)} of all, {'over' if over else 'not over'} {least.text}; "
            f"{percent(of_active, 2)} of active, which rounds to {about.rounded(of_active)}"
            + ("" if near else f", not to {about.text}")
        )
        lines += [
            f"{name}: {exact(value(sizes, 'experts'))} / {exact(value(sizes, 'params'))}"
            f" = {percent(of_all, 2)} of all",
            f"{name}: {exact(value(sizes, 'active_experts'))} / "
            f"{exact(value(sizes, 'active_params'))} = {percent(of_active, 2)} of active",
        ]
    names = [name for name, held in zip(models, holds, strict=True) if held]
    return Finding(
        verdict=RIGHT if all(holds) else CONDITIONAL if any(holds) else WRONG,
        says=". ".join(told) + ".",
        correct=". ".join(told),
        computation=tuple(lines),
        values={},
        witness="formula",
        condition=f"{' or '.join(names)} is meant",
    )
