"""Claims about what several models have in common: a family, or the whole catalog."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import WITNESS
from metacount.claims.parts import model_of, models, percent, spec_of, value
from metacount.claims.text import Words, listed, say
from metacount.formulas.model import params_by_role
from metacount.formulas.sublayers import norm_params
from metacount.spec import ModelSpec
from metacount.spec.rules import beyond_branches
from metacount.units import exact, short

OVER_CATALOG = say("formula, over the catalog")
SHARES = ("ffn", "attention", "rest")


def catalog_shares(claim: Claim) -> Finding:
    """Judge whether FFN, attention and the rest have such shares. Options:
    `smallest`, `largest`, `about`.

    About means: at most `about` away. The rest has to be under its share.
    """
    options = claim.options
    low, high, about = (labels.parse(options[k]).value for k in ("smallest", "largest", "about"))
    said = {name: labels.parse(text).value for name, text in claim.claimed.items()}
    shares, sizes = {}, {}
    for entry, spec in models():
        roles = params_by_role(spec)
        total = sum(roles.values())
        plain = spec.kind == "decoder" and spec.last_stack.uniform and not spec.is_moe
        if not plain or beyond_branches(spec) or not low <= total <= high:
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
            say(
                "{part} from {least} ({first}) to {most} ({last})",
                part=say(name.replace("ffn", "FFN")),
                least=percent(shares[first][name]),
                first=first,
                most=percent(shares[last][name]),
                last=last,
            )
        )
    n, met = len(shares), listed(holds or [say("none of them")])
    return Finding(
        verdict=RIGHT if len(holds) == n else CONDITIONAL if holds else WRONG,
        says=say(
            "In {n} dense decoders of the catalog with attention in every layer, from {smallest} "
            "to {largest}: {told}. "
            "The stated shares are met, within {about} each, by {models}.",
            n=n,
            smallest=options["smallest"],
            largest=options["largest"],
            told=listed(told, "; "),
            about=options["about"],
            models=met,
        ),
        correct=listed(told, "; "),
        computation=tuple(
            say(
                "{part}: {steps}",
                part=f"{id} ({short(sizes[id])})",
                steps=listed(
                    say("{part} {n}", part=say(name), n=percent(shares[id][name]))
                    for name in SHARES
                ),
            )
            for id in sorted(shares, key=lambda id: sizes[id])
        ),
        values={},
        witness=OVER_CATALOG,
        condition=say("the model is one of {models}", models=met),
    )


def same_top_k(claim: Claim) -> Finding:
    """Judge whether several models use the same k. Options: `models`."""
    entries = [catalog.entry(name) for name in claim.options["models"]]
    specs = {entry.name: entry.spec() for entry in entries}
    holds = [name for name, spec in specs.items() if spec.top_k == claim.claimed]
    told = listed(f"{name} {spec.top_k}" for name, spec in specs.items())
    return Finding(
        verdict=RIGHT if len(holds) == len(specs) else WRONG,
        says=say(
            "Experts per token: {told}. It is so for {models}.",
            told=told,
            models=listed(holds or [say("none of them")]),
        ),
        correct=told,
        computation=tuple(_experts(name, spec) for name, spec in specs.items()),
        values={},
        witness=say("catalog"),
    )


def _experts(name: str, spec: ModelSpec) -> Words:
    """Say how many experts a model has, and of which width."""
    routed = say(
        "{model}: {k} of {n} experts of width {width}",
        model=name,
        k=str(spec.top_k),
        n=str(spec.n_experts),
        width=str(spec.d_ff_expert),
    )
    shared = spec.n_shared_experts
    return say("{routed}, and {n} shared", routed=routed, n=shared) if shared else routed


def expert_shares(claim: Claim) -> Finding:
    """Judge whether experts are over a share of all parameters, and about a share of the active
    ones, in a model and in a smaller one of its family. Options: `also_name`, `also_set`.

    About means: rounded to the digits of the claim.
    """
    spec = spec_of(claim)
    least = labels.parse(claim.claimed["total"].removeprefix("over "))
    about = labels.parse(claim.claimed["active"].removeprefix("about "))
    models = {
        model_of(claim).name: spec,
        claim.options["also_name"]: spec.replace(**claim.options["also_set"]),
    }
    holds: list[bool] = []
    told: list[Words] = []
    lines: list[Words] = []
    for name, sizes in models.items():
        of_all = Fraction(value(sizes, "experts"), value(sizes, "params"))
        of_active = Fraction(value(sizes, "active_experts"), value(sizes, "active_params"))
        over, near = of_all > least.value, about.holds(of_active)
        holds.append(over and near)
        one = say(
            "{model}: {percent} of all, {over} {least}; {active} of active, which rounds to "
            "{rounded}",
            model=name,
            percent=percent(of_all, 2),
            over=say("over" if over else "not over"),
            least=least.text,
            active=percent(of_active, 2),
            rounded=about.rounded(of_active),
        )
        told.append(one if near else say("{said}, not to {label}", said=one, label=about.text))
        lines += [
            say(
                "{model}: {steps} of all",
                model=name,
                steps=f"{exact(value(sizes, 'experts'))} / {exact(value(sizes, 'params'))}"
                f" = {percent(of_all, 2)}",
            ),
            say(
                "{model}: {steps} of active",
                model=name,
                steps=f"{exact(value(sizes, 'active_experts'))} / "
                f"{exact(value(sizes, 'active_params'))} = {percent(of_active, 2)}",
            ),
        ]
    names = [name for name, held in zip(models, holds, strict=True) if held]
    return Finding(
        verdict=RIGHT if all(holds) else CONDITIONAL if any(holds) else WRONG,
        says=say("{told}.", told=listed(told, ". ")),
        correct=listed(told, ". "),
        computation=tuple(lines),
        values={},
        witness=WITNESS,
        condition=say("{models} is meant", models=listed(names, " or ")),
    )


def moe_by_size(claim: Claim) -> Finding:
    """Judge whether models are mixtures of experts from a number
    of parameters on, and dense below it.
    """
    border = labels.parse(claim.claimed)
    # without a vocabulary it is a part of a model
    whole = [(entry, spec) for entry, spec in models() if spec.vocab_size]
    sizes = {
        is_moe: {e.id: value(s, "params") for e, s in whole if s.is_moe is is_moe}
        for is_moe in (True, False)
    }
    small = {id: n for id, n in sizes[True].items() if n < border.value}
    large = {id: n for id, n in sizes[False].items() if n >= border.value}
    least, most = min(sizes[True].values()), max(sizes[False].values())
    told = say(
        "mixtures of experts from {least} to {above}, dense models from {below} to {most}",
        least=short(least),
        above=short(max(sizes[True].values())),
        below=short(min(sizes[False].values())),
        most=short(most),
    )
    return Finding(
        verdict=WRONG if small or large else RIGHT,
        says=say(
            "Of the catalog's models with a vocabulary, {small} of {moe} mixtures of experts "
            "are below {border}, and {large} of {dense} dense models are not.",
            small=len(small),
            large=len(large),
            moe=len(sizes[True]),
            dense=len(sizes[False]),
            border=border.text,
        ),
        correct=told,
        computation=tuple(
            say(
                heading,
                border=border.text,
                models=listed(
                    [f"{id} {short(n)}" for id, n in sorted(found.items(), key=_size)]
                    or [say("none")]
                ),
            )
            for heading, found in (
                ("mixtures of experts below {border}: {models}", small),
                ("dense models from {border} on: {models}", large),
            )
        ),
        values={
            "no_border": least < most,
            "least": short(least),
            "most": short(most),
            "fewest": min(sizes[True], key=lambda id: sizes[True][id]),
            "widest": max(sizes[False], key=lambda id: sizes[False][id]),
        },
        witness=OVER_CATALOG,
    )


def _size(found: tuple[str, int]) -> int:
    return found[1]


def norm_ratio(claim: Claim) -> Finding:
    """Judge whether an RMSNorm has such a share of the parameters
    of the LayerNorm that a model has.
    """
    said = labels.parse(claim.claimed)
    ratios, lines = {}, []
    for entry, spec in models():
        if spec.norm != "layernorm":
            continue
        here = norm_params(spec.d_model, bias=spec.norm_bias, affine=spec.norm_affine)
        plain = norm_params(spec.d_model)
        ratios[entry.id] = Fraction(plain, here)
        lines.append(
            say(
                "{model}, d = {d}: LayerNorm {here}, RMSNorm {plain}",
                model=entry.id,
                d=str(spec.d_model),
                here=exact(here),
                plain=exact(plain),
            )
        )
    holds = [id for id, ratio in ratios.items() if said.holds(ratio)]
    others = [id for id in ratios if id not in holds]
    biased = [e.id for e, s in models() if e.id in ratios and s.norm_bias]
    condition = say("the LayerNorm has a bias")
    return Finding(
        verdict=RIGHT if not others else CONDITIONAL if holds else WRONG,
        says=say(
            "It is so for {n} of the {all} models of the catalog with LayerNorm, and not for "
            "{others}.",
            n=len(holds),
            all=len(ratios),
            others=listed(others or [say("any")]),
        ),
        correct=say("d against 2·d with a bias, d against d without one"),
        computation=tuple(lines),
        values={"bias_decides": holds == biased},
        witness=OVER_CATALOG,
        condition=condition
        if holds == biased
        else say("the model is one of {models}", models=listed(holds)),
    )
