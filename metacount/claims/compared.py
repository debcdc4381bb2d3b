"""Claims that compare parts or models with each other: the formulas and the catalog decide."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.parts import computation, spec_of, value, without_biases
from metacount.formulas import ffn
from metacount.formulas import model as formulas
from metacount.units import exact, relative, signed


def growth(claim: Claim) -> Finding:
    """A block grows by so much between two widths. Options: `from`, `to`.

    Three ways to widen a block are tried; the claim must hold exactly.
    """
    narrow = spec_of(claim)
    old, new = claim.options["from"], claim.options["to"]
    label = labels.parse(claim.claimed)
    narrow = narrow.replace(d_model=old, n_heads=old // narrow.head_dim,
                            n_kv_heads=old // narrow.head_dim, d_ff=4 * old)  # fmt: skip
    heads = new // (narrow.head_dim or 1)
    wide = narrow.replace(d_model=new, n_heads=heads, n_kv_heads=heads, d_ff=4 * new)
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
    )


def gated_width(claim: Claim) -> Finding:
    """The rounded 2/3 rule gives so wide an FFN. Options: `d_model`, `multiple_of`."""
    d, multiple = claim.options["d_model"], claim.options["multiple_of"]
    width = ffn.gated_d_ff(d, multiple_of=multiple)
    gated, plain = ffn.glu_params(d, width), ffn.plain_params(d, 4 * d)
    # the least width above d whose 8/3 is a multiple already
    even = next(n for n in range(d + 1, 2 * d) if 8 * n % (3 * multiple) == 0)
    label = labels.parse(claim.claimed)
    thirds = f"{float(Fraction(8 * d, 3)):,.2f}"
    return Finding(
        verdict=RIGHT if label.holds(width) else WRONG,
        says=f"8/3·{d} = {thirds}, up to the next multiple of {multiple} it is {exact(width)}"
        + ("." if label.holds(width) else f", not {claim.claimed}."),
        correct=exact(width),
        computation=(
            f"8/3·{d} = {thirds}, rounded up to {width // multiple}·{multiple} = {exact(width)}",
            f"SwiGLU: 3·d·m = 3·{d}·{width} = {exact(gated)}",
            f"GELU: 8·d² = 8·{d}² = {exact(plain)}, so SwiGLU has {signed(gated - plain)}",
            f"at d = {even}: 3·{even}·{8 * even // 3} = "
            f"{exact(ffn.glu_params(even, ffn.gated_d_ff(even, multiple_of=multiple)))}"
            f" = 8·{even}²",
        ),
        values={"more": relative(gated - plain, plain), "even": exact(even)},
        witness="formula",
    )


def sum_and_rest(claim: Claim) -> Finding:
    """Matrices and token table sum up to the claimed number, and biases alone are the rest."""
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    blocks, table = value(spec, "layers_matrices"), value(spec, "token_table")
    total, biases = value(spec, "params"), value(spec, "layers_biases")
    rest = total - blocks - table
    norms = formulas.params_by_role(spec)["norm"]
    positions = rest - biases - norms
    holds = label.holds(blocks + table) and rest == biases
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"The model has {exact(total)}; blocks and token table make {exact(blocks + table)}, "
        f"or {label.rounded(blocks + table)}.",
        correct=exact(total),
        computation=(
            f"matrices of the blocks: {computation(spec, 'layers_matrices')}",
            f"token table: {computation(spec, 'token_table')}",
            f"sum: {exact(blocks)} + {exact(table)} = {exact(blocks + table)}",
            f"rest: {exact(total)} - {exact(blocks + table)} = {exact(rest)}",
            f"position table: {computation(spec, 'positions')}",
            f"norms {exact(norms)}, biases {exact(biases)}: "
            f"{exact(positions)} + {exact(norms)} + {exact(biases)} = {exact(rest)}",
        ),
        values={"rest": exact(rest), "positions": exact(positions), "norms": exact(norms),
                "biases": exact(biases)},
        witness="formula",
    )  # fmt: skip


def tied_head(claim: Claim) -> Finding:
    """The head shares the embedding, and the model has so many parameters."""
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    total, head = value(spec, "params"), value(spec, "head")
    without = total - head
    norms = formulas.params_by_role(spec)["norm"]
    biases = total - formulas.params(without_biases(spec))
    holds = spec.tie_embeddings and label.holds(total - norms - biases)
    head_text = "is tied" if spec.tie_embeddings else "is not tied"
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=f"The head {head_text}; the exact count is {exact(total)}.",
        correct=exact(total),
        computation=(
            f"without a head of its own: {exact(without)}, or {label.rounded(without)}",
            f"head: {computation(spec, 'head')}",
            f"sum: {exact(without)} + {exact(head)} = {exact(total)}",
            f"norms {exact(norms)}, biases {exact(biases)}",
        ),
        values={"head": exact(head), "norms": exact(norms)},
        witness="formula; catalog (the head of the released model)",
    )


def plain_ffn(claim: Claim) -> Finding:
    """The FFN is plain, two matrices: what the whole model would then have is laid beside it."""
    spec = spec_of(claim)
    assert claim.model is not None
    published = catalog.entry(claim.model).published.params
    total = value(spec, "params")
    plain = formulas.params(spec.replace(gated=False))
    gated = formulas.params(spec.replace(gated=True))
    known = f"the published count is {exact(published)}" if published is not None else (
        "no exact count is published")  # fmt: skip
    return Finding(
        verdict=RIGHT if not spec.gated and published in (None, plain) else WRONG,
        says=f"With a gate the model has {exact(gated)} parameters, without one {exact(plain)}; "
        f"{known}.",
        correct=f"{'gated' if spec.gated else 'plain'}, {exact(total)} in the model",
        computation=(
            f"gated, per layer: {computation(spec.replace(gated=True), 'ffn')}",
            f"plain, per layer: {computation(spec.replace(gated=False), 'ffn')}",
            f"model: gated {exact(gated)}, plain {exact(plain)}, published {known.split()[-1]}",
        ),
        values={"plain": exact(plain), "published": known.split()[-1]},
        witness="formula; catalog (published count)",
    )


def two_stacks(claim: Claim) -> Finding:
    """The fields hold, and `n_layers` is said of a model that may have two stacks of them."""
    spec = spec_of(claim)
    different = [name for name, said in claim.claimed.items() if getattr(spec, name) != said]
    both = value(spec, "params")
    n = spec.n_layers
    shown = f"{spec.n_encoder_layers} + {n}"
    half = spec.replace(n_layers=n - n // 2, n_encoder_layers=n // 2) if spec.has_encoder else spec
    verdict = WRONG if different else CONDITIONAL if spec.has_encoder else RIGHT
    values = {"both": exact(both), "half": exact(value(half, "params"))}
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
            f"{shown} blocks: {values['both']}",
            f"{n} blocks in all: {values['half']}",
        ),
        values=values,
        witness="formula; catalog (published count)",
    )  # fmt: skip


def fields(claim: Claim) -> Finding:
    """Sizes of a model, exactly."""
    spec = spec_of(claim)
    found = {name: getattr(spec, name) for name in claim.claimed}
    different = {name: said for name, said in claim.claimed.items() if found[name] != said}
    lines = [f"{name}: {found[name]}, stated {said}" for name, said in claim.claimed.items()]
    if spec.is_moe:
        lines.append(f"n_shared_experts: {spec.n_shared_experts}")
    return Finding(
        verdict=WRONG if different else RIGHT,
        says="It is so." if not different else "In fact "
        + ", ".join(f"{name} is {found[name]}" for name in different) + ".",
        correct=", ".join(f"{name} {size}" for name, size in found.items()),
        computation=tuple(lines),
        values={name: str(getattr(spec, name)) for name in (*found, "n_shared_experts")},
        witness="catalog",
    )  # fmt: skip


def same_part(claim: Claim) -> Finding:
    """A part of one model is as large as a part of another. Options: `part`, `other`,
    `other_part`, `instead` (a model whose part it is, if it is that size)."""
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
            "instead": third.name if one == three else "no model of this comparison",
            "other_width": str(other.d_ff),
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
        values={"params": exact(total)},
        witness="formula",
    )  # fmt: skip
