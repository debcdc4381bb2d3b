"""Claims about what several models have in common: a family, or the whole catalog."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import models, percent, spec_of, value
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
        verdict=RIGHT if len(holds) == n else WRONG,
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
    )


def same_top_k(claim: Claim) -> Finding:
    """Several models use the same k. Options: `models`."""
    specs = {name: catalog.entry(name).spec() for name in claim.options["models"]}
    holds = all(spec.top_k == claim.claimed for spec in specs.values())
    told = ", ".join(f"{catalog.entry(name).name} {spec.top_k}" for name, spec in specs.items())
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"Experts per token: {told}.",
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
    and in a smaller one of its family. Options: `also_name`, `also_set`."""
    assert claim.model is not None
    spec = spec_of(claim)
    least = labels.parse(claim.claimed["total"].removeprefix("over ")).value
    about = labels.parse(claim.claimed["active"])
    models = {
        catalog.entry(claim.model).name: spec,
        claim.options["also_name"]: spec.replace(**claim.options["also_set"]),
    }
    holds, told, lines = [], [], []
    for name, sizes in models.items():
        of_all = Fraction(value(sizes, "experts"), value(sizes, "params"))
        of_active = Fraction(value(sizes, "active_experts"), value(sizes, "active_params"))
        holds.append(of_all > least and about.holds(of_active))
        told.append(f"{name}: {percent(of_all, 2)} of all, {percent(of_active, 2)} of active")
        lines += [
            f"{name}: {exact(value(sizes, 'experts'))} / {exact(value(sizes, 'params'))}"
            f" = {percent(of_all, 2)} of all",
            f"{name}: {exact(value(sizes, 'active_experts'))} / "
            f"{exact(value(sizes, 'active_params'))} = {percent(of_active, 2)} of active",
        ]
    return Finding(
        verdict=RIGHT if all(holds) else CONDITIONAL if any(holds) else WRONG,
        says="; ".join(told) + ".",
        correct="; ".join(told),
        computation=tuple(lines),
        values={},
        witness="formula",
    )
