"""Claims about counts that need more than an expression, of a model or of the whole catalog."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from metacount.formulas import model
from metacount.spec.rules import beyond_branches
from metacount.teaching.claim import Claim, Finding, found
from metacount.teaching.labels import label
from metacount.teaching.parts import (
    RUNS,
    model_of,
    models,
    spec_of,
    value,
)
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    Row = dict[str, object]


def same_at_length(claim: Claim) -> Finding:
    """Judge whether a count is the same from some length on: what n further tokens add is 0.

    Options: `of` (`decode_matmul_flops` of a token that attends to so many positions, with itself;
    `kept_values` of the KV cache after so many), `from`, `to` (a longer one, to be shown).
    """
    import sympy

    from metacount.algebra.writing import in_letters

    spec, options = spec_of(claim), claim.options
    start, end, counted = options["from"], options["to"], partial(RUNS[options["of"]], spec, 1)
    if not 0 < start < end:
        raise ValueError(f"the second length is the longer one: got {start} and {end}")
    more = sympy.Symbol("n", integer=True, nonnegative=True)
    first, last = int(counted(start)), int(counted(end))
    step = int(counted(start + 1)) - first
    added = sympy.expand(counted(start + more) - first)
    linear = bool(added == step * more)
    return found(
        [added == 0],
        start=start,
        end=end,
        first=first,
        last=last,
        step=step,
        linear=linear,
        flops=options["of"] == "decode_matmul_flops",
        formula=f"{exact(step)}·n" if linear and step else in_letters(added),
    )


# Fields and sizes of a model, as the catalog has them from their source.


# Claims about a whole model that its published count decides: what is missing, tied or gated.


# What several models of the catalog have in common.

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
        roles = model.params_by_role(spec)
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
