"""Claims about what several models of the catalog have in common."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.formulas.model import params_by_role
from metacount.formulas.sublayers import norm_params
from metacount.spec.rules import beyond_branches
from metacount.teaching.claim import Claim, Finding, found, label
from metacount.teaching.parts import model_of, models, spec_of, value

SHARES = ("ffn", "attention", "rest")


def catalog_shares(claim: Claim) -> Finding:
    """Judge whether FFN, attention and the rest have such shares of dense decoders.

    Options: `smallest`, `largest`, `about`. About means: at most `about` away. The rest has to be
    under its share.
    """
    options = claim.options
    low, high, about = (label(options[k]).value for k in ("smallest", "largest", "about"))
    stated = {name: label(text).value for name, text in claim.claimed.items()}
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
    holds = {
        id: share["rest"] < stated["rest"]
        and all(abs(share[name] - stated[name]) <= about for name in ("ffn", "attention"))
        for id, share in shares.items()
    }
    ranges = []
    for name in SHARES:
        first, last = (pick(shares, key=lambda id: shares[id][name]) for pick in (min, max))
        least, most = shares[first][name], shares[last][name]
        row = {"part": name.replace("ffn", "FFN"), "least": least, "first": first}
        ranges.append({**row, "most": most, "last": last})
    return found(
        holds.values(),
        n=len(shares),
        ranges=ranges,
        held=[id for id, held in holds.items() if held],
        models=[
            {
                "model": id,
                "size": sizes[id],
                "shares": [{"part": name, "share": shares[id][name]} for name in SHARES],
            }
            for id in sorted(shares, key=lambda id: sizes[id])
        ],
        **{name: options[name] for name in ("smallest", "largest", "about")},
    )


def same_top_k(claim: Claim) -> Finding:
    """Judge whether several models use the same k. Options: `models`."""
    rows = [
        {
            "model": entry.name,
            "k": str(spec.top_k),
            "n": str(spec.n_experts),
            "width": str(spec.d_ff_expert),
            "shared": spec.n_shared_experts,
            "holds": spec.top_k == claim.claimed,
        }
        for entry, spec in (
            (entry, entry.spec()) for entry in map(catalog.entry, claim.options["models"])
        )
    ]
    return found(
        [all(row["holds"] for row in rows)],
        models=rows,
        k_of_each=[f"{row['model']} {row['k']}" for row in rows],
        held=[row["model"] for row in rows if row["holds"]],
    )


def expert_shares(claim: Claim) -> Finding:
    """Judge whether experts have over a share of all parameters, about another of the active ones.

    In a model and in a smaller one of its family. Options: `also_name`, `also_set`. About means:
    rounded to the digits of the claim.
    """
    spec = spec_of(claim)
    least = label(claim.claimed["total"].removeprefix("over "))
    about = label(claim.claimed["active"].removeprefix("about "))
    rows, steps = [], []
    for name, sizes in (
        (model_of(claim).name, spec),
        (claim.options["also_name"], spec.replace(**claim.options["also_set"])),
    ):
        shares = []
        for active, part, whole in (
            (False, "experts", "params"),
            (True, "active_experts", "active_params"),
        ):
            above, below = value(sizes, part), value(sizes, whole)
            shares.append(Fraction(above, below))
            row = {"model": name, "active": active, "above": above, "below": below}
            steps.append({**row, "ratio": shares[-1]})
        of_all, of_active = shares
        over, near = of_all > least.value, about.holds(of_active)
        row = {"model": name, "of_all": of_all, "of_active": of_active, "over": over, "near": near}
        rows.append({**row, "rounded": about.rounded(of_active), "holds": over and near})
    return found(
        (bool(row["holds"]) for row in rows),
        models=rows,
        steps=steps,
        held=[row["model"] for row in rows if row["holds"]],
        least=least.text,
        label=about.text,
    )


def moe_by_size(claim: Claim) -> Finding:
    """Judge whether models are mixtures of experts from so many parameters on, and dense below."""
    border = label(claim.claimed)
    # without a vocabulary it is a part of a model
    whole = [(entry.id, spec, value(spec, "params")) for entry, spec in models() if spec.vocab_size]
    moe, dense = (
        sorted(((id, n) for id, s, n in whole if s.is_moe is is_moe), key=lambda each: each[1])
        for is_moe in (True, False)
    )
    small = [{"model": id, "n": n} for id, n in moe if n < border.value]
    large = [{"model": id, "n": n} for id, n in dense if n >= border.value]
    return found(
        [not small and not large],
        small=small,
        large=large,
        n_small=len(small),
        n_large=len(large),
        n_moe=len(moe),
        n_dense=len(dense),
        moe_least=moe[0][1],
        moe_most=moe[-1][1],
        dense_least=dense[0][1],
        dense_most=dense[-1][1],
        no_border=moe[0][1] < dense[-1][1],
        fewest=moe[0][0],
        widest=dense[-1][0],
    )


def norm_ratio(claim: Claim) -> Finding:
    """Judge whether an RMSNorm has such a share of the parameters of a model's LayerNorm."""
    stated = label(claim.claimed)
    rows = []
    for entry, spec in models():
        if spec.norm != "layernorm":
            continue
        own = norm_params(spec.d_model, bias=spec.norm_bias, affine=spec.norm_affine)
        plain = norm_params(spec.d_model)
        holds = stated.holds(Fraction(plain, own))
        row = {"model": entry.id, "d": str(spec.d_model), "own": own, "plain": plain}
        rows.append({**row, "holds": holds, "bias": spec.norm_bias})
    held = [row["model"] for row in rows if row["holds"]]
    return found(
        (bool(row["holds"]) for row in rows),
        models=rows,
        n=len(held),
        all=len(rows),
        held=held,
        others=[row["model"] for row in rows if not row["holds"]],
        bias_decides=held == [row["model"] for row in rows if row["bias"]],
    )
