"""Claims that compare parts or models with each other: the formulas and the catalog decide."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import (
    computation,
    in_numbers,
    letters,
    model_of,
    percent,
    spec_of,
    value,
    without_biases,
)
from metacount.errors import SpecError
from metacount.formulas import ffn
from metacount.formulas import model as formulas
from metacount.spec import legend
from metacount.units import exact, relative, signed


def growth(claim: Claim) -> Finding:
    """A block grows by so much between two widths. Options: `from`, `to`.

    Three ways to widen a block are tried; the claim must hold exactly.
    """
    narrow = spec_of(claim)
    old, new = claim.options["from"], claim.options["to"]
    label = labels.parse(claim.claimed)
    if not narrow.head_dim or old % narrow.head_dim or new % narrow.head_dim:
        raise SpecError("claim", "needs widths that heads of head_dim divide", claim.id,
                        "choose other widths")  # fmt: skip
    few, many = old // narrow.head_dim, new // narrow.head_dim
    narrow = narrow.replace(d_model=old, n_heads=few, n_kv_heads=few, d_ff=4 * old)
    wide = narrow.replace(d_model=new, n_heads=many, n_kv_heads=many, d_ff=4 * new)
    same_ffn = wide.replace(d_ff=4 * old)
    ways = {
        "matrices, everything widened": (wide, "layer_matrices"),
        "the same with its norms": (wide, "layer"),
        f"matrices, FFN kept at {4 * old}": (same_ffn, "layer_matrices"),
    }
    found, lines = {}, []
    for words, (spec, part) in ways.items():
        above, below = value(spec, part), value(narrow, part)
        found[words] = Fraction(above, below)
        lines.append(f"{words}: {exact(above)} / {exact(below)} = {float(found[words]):.5g}")
    holds = [words for words, ratio in found.items() if label.holds(ratio)]
    verdict = RIGHT if len(holds) == len(found) else CONDITIONAL if holds else WRONG
    told = "; ".join(f"{words}: {float(ratio):.5g}" for words, ratio in found.items())
    return Finding(
        verdict=verdict,
        says=f"{told[0].upper()}{told[1:]}.",
        correct=told,
        computation=tuple(lines),
        values={},
        witness="formula",
        condition=f"it means {' or '.join(holds)}",
    )


def gated_width(claim: Claim) -> Finding:
    """The rounded 2/3 rule gives so wide an FFN, with about the parameters of a plain one of 4·d.

    Options: `d_model`, `multiple_of`, `within` (how near "about" is).
    """
    d, multiple = claim.options["d_model"], claim.options["multiple_of"]
    if min(d, multiple) < 1:
        raise ValueError(f"widths are positive: got {d} and {multiple}")
    within = labels.parse(claim.options["within"])
    width = ffn.gated_d_ff(d, multiple_of=multiple)
    gated, plain = ffn.glu_params(d, width), ffn.plain_params(d, 4 * d)
    # the least width above d whose 8/3 is a multiple already; 3·multiple is one at the latest
    even = next(n for n in range(d + 1, d + 3 * multiple + 1) if 8 * n % (3 * multiple) == 0)
    even_gated = ffn.glu_params(even, ffn.gated_d_ff(even, multiple_of=multiple))
    even_plain = ffn.plain_params(even, 4 * even)
    label = labels.parse(claim.claimed)
    near = abs(Fraction(gated - plain, plain)) <= within.value
    thirds = f"{float(Fraction(8 * d, 3)):,.2f}"
    return Finding(
        verdict=RIGHT if label.holds(width) and near else WRONG,
        says=f"8/3·{d} = {thirds}, up to the next multiple of {multiple} it is {exact(width)}"
        + (". " if label.holds(width) else f", not {claim.claimed}. ")
        + f"That is {relative(gated - plain, plain)} beside 8·d², {'' if near else 'not '}within "
        f"{within.text}.",
        correct=exact(width),
        computation=(
            f"8/3·{d} = {thirds}, rounded up to {width // multiple}·{multiple} = {exact(width)}",
            f"SwiGLU: 3·d·m = 3·{d}·{width} = {exact(gated)}",
            f"GELU: 8·d² = 8·{d}² = {exact(plain)}, so SwiGLU has {signed(gated - plain)}",
            f"at d = {even}: SwiGLU {exact(even_gated)}, GELU {exact(even_plain)}",
        ),
        values={"even": even, "even_apart": even_gated - even_plain, "multiple_of": multiple},
        witness="formula",
    )


def sum_and_rest(claim: Claim) -> Finding:
    """Blocks and token table have so many parameters, sum up to that, and biases alone are missing
    to the whole. Claimed: `block`, `table`, `sum`, `whole`."""
    spec = spec_of(claim)
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    blocks, table = value(spec, "layers_matrices"), value(spec, "token_table")
    total, biases = value(spec, "params"), value(spec, "layers_biases")
    found = {"block": value(spec, "layer_matrices"), "table": table, "sum": blocks + table,
             "whole": total}  # fmt: skip
    holds = {name: said[name].holds(found[name]) for name in said}
    rest = total - blocks - table
    norms = formulas.params_by_role(spec)["norm"]
    positions = rest - biases - norms
    not_so = [f"{name} {said[name].text} (it rounds to {said[name].rounded(found[name])})"
              for name in said if not holds[name]]  # fmt: skip
    return Finding(
        verdict=RIGHT if all(holds.values()) and rest == biases else WRONG,
        says=f"Not so: {', '.join(not_so)}." if not_so else "The stated numbers are so.",
        correct=exact(total),
        computation=(
            f"matrices of a block: {computation(spec, 'layer_matrices')}",
            f"matrices of the blocks: {computation(spec, 'layers_matrices')}",
            f"token table: {computation(spec, 'token_table')}",
            f"sum: {exact(blocks)} + {exact(table)} = {exact(blocks + table)}",
            f"rest: {exact(total)} - {exact(blocks + table)} = {exact(rest)}",
            f"not in the matrices: norms {exact(norms)}, biases {exact(biases)}, other (position "
            f"table, head) {exact(positions)}",
        ),
        values={"rest": rest, "norms": norms, "biases": biases, "other": positions},
        witness="formula",
    )  # fmt: skip


def tied_head(claim: Claim) -> Finding:
    """The head shares the embedding, and biases and norms bring the model from one number to
    another; the published count decides about the head. Claimed: `without` them, `with` them."""
    spec = spec_of(claim)
    less, more = (labels.parse(claim.claimed[name]) for name in ("without", "with"))
    tied, untied = (
        formulas.params(spec.replace(tie_embeddings=shared)) for shared in (True, False)
    )
    published = model_of(claim).published.params
    # without a published count the catalog's field is all there is
    shares = spec.tie_embeddings if published is None else published == tied
    total = tied if shares else untied
    norms = formulas.params_by_role(spec)["norm"]
    biases = value(spec, "params") - formulas.params(without_biases(spec))
    small = total - norms - biases
    holds = shares and less.holds(small) and more.holds(total)
    known = "no exact count is published" if published is None else (
        f"the published count is {exact(published)}")  # fmt: skip
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"With the embedding as its head the model has {exact(tied)} parameters, with a head "
        f"of its own {exact(untied)}; {known}. Without norms and biases that is {exact(small)}, or "
        f"{less.rounded(small)}; with them {more.rounded(total)}.",
        correct=exact(total),
        computation=(
            f"without a head of its own: {exact(tied)}, or {less.rounded(tied)}",
            f"head: {computation(spec.replace(tie_embeddings=False), 'head')}",
            f"sum: {exact(tied)} + {exact(untied - tied)} = {exact(untied)}",
            f"norms {exact(norms)}, biases {exact(biases)}",
            known,
        ),
        values={
            "norms": norms,
            "biases": biases,
            "less": less.text,
            "more": more.text,
            "head_is_the_step": not shares and less.holds(tied) and more.holds(untied),
        },
        witness="formula; catalog (published count)",
    )


FFN_KINDS = {
    ("gated",): "the one with a gate",
    ("plain",): "the one without",
    ("gated", "plain"): "both",
    (): "neither",
}


def plain_ffn(claim: Claim) -> Finding:
    """The activation is GELU and the FFN is plain, two matrices: the published count decides."""
    spec = spec_of(claim)
    published = model_of(claim).published.params
    counts = {
        "gated": formulas.params(spec.replace(gated=True)),
        "plain": formulas.params(spec.replace(gated=False)),
    }
    gelu = spec.activation.startswith("gelu")
    fits = [name for name, n in counts.items() if n == published]
    # without a published count the sizes in the catalog are all there is
    is_plain = "plain" in fits if published is not None else not spec.gated
    known = (
        "no exact count is published"
        if published is None
        else (f"the published count, {exact(published)}, is {FFN_KINDS[tuple(fits)]}")
    )
    return Finding(
        verdict=RIGHT if gelu and is_plain else WRONG,
        says=f"With a gate the model has {exact(counts['gated'])} parameters, without one "
        f"{exact(counts['plain'])}; {known}.",
        correct=f"{' or '.join(fits) or 'unknown'}, {exact(value(spec, 'params'))} in the model",
        computation=(
            f"gated, per layer: {computation(spec.replace(gated=True), 'ffn')}",
            f"plain, per layer: {computation(spec.replace(gated=False), 'ffn')}",
            f"model: gated {exact(counts['gated'])}, plain {exact(counts['plain'])}; {known}",
            f"activation in the catalog: {spec.activation}",
        ),
        values={"gelu": gelu, "gate": "gated" in fits},
        witness="formula; catalog (published count)",
    )  # fmt: skip


def same_part(claim: Claim) -> Finding:
    """A part of one model is as large as a part of another. Options: `part`, `other`,
    `other_part`, `instead` (a model whose part it may be)."""
    options = claim.options
    spec, other = spec_of(claim), catalog.entry(options["other"]).spec()
    third = catalog.entry(options["instead"])
    one, two = value(spec, options["part"]), value(other, options["other_part"])
    three = value(third.spec(), options["other_part"])
    same = (spec.d_model, spec.d_ff_expert, spec.gated) == (other.d_model, other.d_ff, other.gated)
    return Finding(
        verdict=RIGHT if one == two and same else WRONG,
        says=f"{exact(one)} parameters against {exact(two)}.",
        correct=exact(one),
        computation=(
            f"{claim.model}: {computation(spec, options['part'])}",
            f"{options['other']}: {computation(other, options['other_part'])}",
            f"{third.id}: {computation(third.spec(), options['other_part'])}",
        ),
        values={
            "instead": third.name,
            "is_instead": one == three,
            "other": catalog.entry(options["other"]).name,
            "other_d_model": other.d_model,
            "other_width": other.d_ff,
        },
        witness="formula",
        headline=f"{computation(spec, options['part'])} against "
        f"{computation(other, options['other_part'])}",
    )


def token_cost(claim: Claim) -> Finding:
    """Active parameters and multiply-adds of one token both round to the label. Options: `other`,
    a dense model of about that size."""
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    other = catalog.entry(claim.options["other"])
    active, total = value(spec, "active_params"), value(spec, "params")
    # every matrix product counts 2 FLOPs per multiply-add
    macs, other_macs = (value(s, "decode_flops") // 2 for s in (spec, other.spec()))
    holds = label.holds(active) and label.holds(macs)
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"Active parameters {exact(active)}, multiply-adds of a token {exact(macs)}: "
        + (f"both round to {label.text}." if holds else
           f"they round to {label.rounded(active)} and {label.rounded(macs)}.")
        + f" {other.name} takes {exact(other_macs)}.",
        correct=f"{exact(active)} active, {exact(macs)} multiply-adds",
        computation=(
            f"active: {computation(spec, 'active_params')}",
            f"multiply-adds, attending to itself only: {exact(2 * macs)} / 2 = {exact(macs)}",
            f"{other.name}: {exact(2 * other_macs)} / 2 = {exact(other_macs)}",
            f"stored: {exact(total)}",
        ),
        values={},
        witness="formula",
    )  # fmt: skip


def dense_flops(claim: Claim) -> Finding:
    """An MoE layer with one expert per token takes the FLOPs of a dense layer of that width."""
    from metacount.algebra.writing import in_letters
    from metacount.claims.judges.algebra import compared

    spec = spec_of(claim)
    moe = value(spec, "moe_flops")
    d, m = spec.d_model, spec.d_ff_expert
    dense_ = int(ffn.ffn_matmul_flops(1, d, m, gated=spec.gated))
    truth = letters(spec, "moe_flops").subs(legend.sympy_symbols(["top_k"])["top_k"], spec.top_k)
    named = legend.sympy_symbols(["d_model", "d_ff_expert"])
    said = ffn.ffn_matmul_flops(1, named["d_model"], named["d_ff_expert"], gated=spec.gated)
    difference, verdict = compared(truth, said)
    more = exact(moe - dense_)
    return Finding(
        verdict=verdict,
        says=f"{exact(moe)} FLOPs per token against {exact(dense_)} at d = {d}, m = {m}: "
        f"{more} more, or {percent(Fraction(moe - dense_, dense_), 3)}.",
        correct=in_letters(truth),
        computation=(
            f"MoE, k = {spec.top_k}: {in_letters(truth)} = "
            f"{in_numbers(in_letters(truth), spec)} = {exact(moe)}",
            f"dense: {in_letters(said)} = {in_numbers(in_letters(said), spec)} = {exact(dense_)}",
            f"difference: {in_letters(difference)} = "
            f"{in_numbers(in_letters(difference), spec)} = {more}",
        ),
        values={"dense": dense_, "more": moe - dense_},
        witness="formula",
    )
