"""Claims about counts that need more than an expression, of a model or of the whole catalog."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from metacount.errors import SpecError
from metacount.formulas import model, sublayers
from metacount.formulas.pieces import indexed_layers
from metacount.spec import FIELDS
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
    from collections.abc import Mapping, Sequence

    from metacount.spec import ModelSpec

    Row = dict[str, object]


def growth(claim: Claim) -> Finding:
    """Judge whether a block grows by so much between two widths. Options: `from`, `to`.

    Three ways to widen a block are tried; the claim must hold exactly.
    """
    narrow = spec_of(claim)
    old, new = claim.options["from"], claim.options["to"]
    stated = label(claim.claimed)
    if not narrow.head_dim or old % narrow.head_dim or new % narrow.head_dim:
        raise SpecError(
            "claim", "needs widths that heads of head_dim divide", claim.id, "choose other widths"
        )
    few, many = old // narrow.head_dim, new // narrow.head_dim
    narrow = narrow.replace(d_model=old, n_heads=few, n_kv_heads=few, d_ff=4 * old)
    wide = narrow.replace(d_model=new, n_heads=many, n_kv_heads=many, d_ff=4 * new)
    ways = []
    for way, spec, part in (
        ("matrices", wide, "layer_matrices"),
        ("norms", wide, "layer"),
        ("same_ffn", wide.replace(d_ff=4 * old), "layer_matrices"),
    ):
        above, below = value(spec, part), value(narrow, part)
        ratio = Fraction(above, below)
        row = {"way": way, "above": above, "below": below, "ratio": float(ratio)}
        ways.append({**row, "holds": stated.holds(ratio)})
    return found(
        (bool(way["holds"]) for way in ways),
        ways=ways,
        held=[way for way in ways if way["holds"]],
        kept=str(4 * old),
    )


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


# What an indexer leaves of a model's attention.


def selected_work(claim: Claim) -> Finding:
    """Judge whether attention over what an indexer leaves, index included, is linear in length.

    Options: `seq_len`, more than the indexer leaves, and a multiple of its blocks. Linear means
    that equal steps of the context add equally much. What is chosen is told of all layers, and of
    the same model with an indexer in each.
    """
    spec, n = spec_of(claim), claim.options["seq_len"]
    every = spec.replace(index_pattern="I") if spec.index_block_len is not None else spec
    runs, chosen = (
        [sublayers.attention_by_selection(s, batch_size=1, seq_len=k * n) for k in (1, 2, 3)]
        for s in (spec, every)
    )
    grows = _bends(runs)
    work, index = "selected_attention_flops", "index_flops"
    return found(
        [grows[work] == grows[index] == 0],
        n=n,
        selected=runs[0][work],
        index=runs[0][index],
        dense=runs[0]["dense_attention_flops"],
        selected_is_linear=grows[work] == 0,
        chosen_is_linear=_bends(chosen)[work] == 0,
        index_is_linear=grows[index] == 0,
    )


def _bends(runs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Compute how much more the second step adds, of counts at once, twice and thrice a length."""
    one, two, three = runs
    return {name: three[name] - 2 * two[name] + one[name] for name in one}


def selected_cache(claim: Claim) -> Finding:
    """Judge whether a model with an indexer keeps less of a token than the same model without.

    Of one with blocks in some layers, all layers are counted; else one of its layers, all alike.
    """
    spec = spec_of(claim)
    blocks = spec.index_block_len is not None
    gone = (name for name in FIELDS if name.startswith(("index_", "n_index_")))
    bare = spec.replace(**{name: FIELDS[name].absent for name in gone})

    def kept_of(s: ModelSpec) -> int:
        if blocks:
            return int(model.kv_cache_bytes_per_token(s, bytes_per_value=1))
        return int(model.kv_cache_values(s))

    kept, without = kept_of(spec), kept_of(bare)
    return found(
        [kept < without],
        blocks=blocks,
        kept=kept,
        without=without,
        more=kept - without,
        n_indexed=int(indexed_layers(spec, spec.n_layers)) if blocks else 0,
    )


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
