"""Claims that compare parts, models or lengths: the formulas and the catalog decide."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.claims import labels
from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import WITNESS
from metacount.claims.parts import computation, in_numbers, letters, percent, spec_of, value
from metacount.claims.text import listed, say
from metacount.errors import SpecError
from metacount.formulas import feed_forward, sublayers
from metacount.spec import legend
from metacount.units import exact, relative, signed


def growth(claim: Claim) -> Finding:
    """Judge whether a block grows by so much between two widths. Options: `from`, `to`.

    Three ways to widen a block are tried; the claim must hold exactly.
    """
    narrow = spec_of(claim)
    old, new = claim.options["from"], claim.options["to"]
    label = labels.parse(claim.claimed)
    if not narrow.head_dim or old % narrow.head_dim or new % narrow.head_dim:
        raise SpecError(
            "claim", "needs widths that heads of head_dim divide", claim.id, "choose other widths"
        )
    few, many = old // narrow.head_dim, new // narrow.head_dim
    narrow = narrow.replace(d_model=old, n_heads=few, n_kv_heads=few, d_ff=4 * old)
    wide = narrow.replace(d_model=new, n_heads=many, n_kv_heads=many, d_ff=4 * new)
    same_ffn = wide.replace(d_ff=4 * old)
    ways = (
        (say("matrices, everything widened"), wide, "layer_matrices"),
        (say("the same with its norms"), wide, "layer"),
        (say("matrices, FFN kept at {width}", width=4 * old), same_ffn, "layer_matrices"),
    )
    holds, lines, told = [], [], []
    for words, spec, part in ways:
        above, below = value(spec, part), value(narrow, part)
        ratio = Fraction(above, below)
        steps = f"{exact(above)} / {exact(below)} = {float(ratio):.5g}"
        lines.append(say("{part}: {steps}", part=words, steps=steps))
        told.append(say("{part}: {steps}", part=words, steps=f"{float(ratio):.5g}"))
        if label.holds(ratio):
            holds.append(words)
    return Finding(
        verdict=RIGHT if len(holds) == len(ways) else CONDITIONAL if holds else WRONG,
        says=say("{told}.", told=listed(told, "; ", capital=True)),
        correct=listed(told, "; "),
        computation=tuple(lines),
        values={},
        witness=WITNESS,
        condition=say("it means {readings}", readings=listed(holds, " or ")),
    )


def gated_width(claim: Claim) -> Finding:
    """Judge whether the rounded 2/3 rule gives so wide an FFN,
    with about the parameters of a plain one of 4·d.

    Options: `d_model`, `multiple_of`, `within` (how near "about" is).
    """
    d, multiple = claim.options["d_model"], claim.options["multiple_of"]
    if min(d, multiple) < 1:
        raise ValueError(f"widths are positive: got {d} and {multiple}")
    within = labels.parse(claim.options["within"])
    width = feed_forward.gated_d_ff(d, multiple_of=multiple)
    gated, plain = sublayers.glu_params(d, width), sublayers.plain_params(d, 4 * d)
    # the least width above d whose 8/3 is a multiple already; 3·multiple is one at the latest
    even = next(n for n in range(d + 1, d + 3 * multiple + 1) if 8 * n % (3 * multiple) == 0)
    even_gated = sublayers.glu_params(even, feed_forward.gated_d_ff(even, multiple_of=multiple))
    even_plain = sublayers.plain_params(even, 4 * even)
    label = labels.parse(claim.claimed)
    near = abs(Fraction(gated - plain, plain)) <= within.value
    thirds = f"{float(Fraction(8 * d, 3)):,.2f}"
    wide = say(
        "8/3·{d} = {thirds}, up to the next multiple of {multiple} it is {width}",
        d=d,
        thirds=thirds,
        multiple=multiple,
        width=exact(width),
    )
    return Finding(
        verdict=RIGHT if label.holds(width) and near else WRONG,
        says=listed(
            [
                wide
                if label.holds(width)
                else say("{said}, not {label}", said=wide, label=claim.claimed),
                say(
                    "That is {percent} beside 8·d², {within} {about}.",
                    about=within.text,
                    within=say("within" if near else "not within"),
                    percent=relative(gated - plain, plain),
                ),
            ],
            ". ",
        ),
        correct=exact(width),
        computation=(
            say(
                "8/3·{d} = {thirds}, rounded up to {steps}",
                d=d,
                thirds=thirds,
                steps=f"{width // multiple}·{multiple} = {exact(width)}",
            ),
            f"SwiGLU: 3·d·m = 3·{d}·{width} = {exact(gated)}",
            say(
                "GELU: {steps}, so SwiGLU has {more}",
                steps=f"8·d² = 8·{d}² = {exact(plain)}",
                more=signed(gated - plain),
            ),
            say(
                "at d = {d}: SwiGLU {gated}, GELU {plain}",
                d=even,
                gated=exact(even_gated),
                plain=exact(even_plain),
            ),
        ),
        values={"even": even, "even_apart": even_gated - even_plain, "multiple_of": multiple},
        witness=WITNESS,
    )


def same_part(claim: Claim) -> Finding:
    """Judge whether a part of one model is as large as a part of another. Options: `part`, `other`,
    `other_part`, `instead` (a model whose part it may be).
    """
    options = claim.options
    spec, other = spec_of(claim), catalog.entry(options["other"]).spec()
    third = catalog.entry(options["instead"])
    one, two = value(spec, options["part"]), value(other, options["other_part"])
    three = value(third.spec(), options["other_part"])
    same = (spec.d_model, spec.d_ff_expert, spec.gated) == (other.d_model, other.d_ff, other.gated)
    return Finding(
        verdict=RIGHT if one == two and same else WRONG,
        says=say("{one} parameters against {two}.", one=exact(one), two=exact(two)),
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
        witness=WITNESS,
        headline=say(
            "{one} against {two}",
            one=computation(spec, options["part"]),
            two=computation(other, options["other_part"]),
        ),
    )


def token_cost(claim: Claim) -> Finding:
    """Judge whether active parameters and multiply-adds of one token both round to the label.
    Options: `other`, a dense model of about that size.
    """
    spec, label = spec_of(claim), labels.parse(claim.claimed)
    other = catalog.entry(claim.options["other"])
    active, total = value(spec, "active_params"), value(spec, "params")
    # every matrix product counts 2 FLOPs per multiply-add
    macs, other_macs = (value(s, "decode_flops") // 2 for s in (spec, other.spec()))
    holds = label.holds(active) and label.holds(macs)
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "Active parameters {active}, multiply-adds of a token {macs}: {round} {other} "
            "takes {others}.",
            active=exact(active),
            macs=exact(macs),
            other=other.name,
            others=exact(other_macs),
            round=say("both round to {label}.", label=label.text)
            if holds
            else say(
                "they round to {active} and {macs}.",
                active=label.rounded(active),
                macs=label.rounded(macs),
            ),
        ),
        correct=say(
            "{active} active, {macs} multiply-adds", active=exact(active), macs=exact(macs)
        ),
        computation=(
            say("active: {steps}", steps=computation(spec, "active_params")),
            say(
                "multiply-adds, attending to itself only: {steps}",
                steps=f"{exact(2 * macs)} / 2 = {exact(macs)}",
            ),
            f"{other.name}: {exact(2 * other_macs)} / 2 = {exact(other_macs)}",
            say("stored: {n}", n=exact(total)),
        ),
        values={},
        witness=WITNESS,
    )


def dense_flops(claim: Claim) -> Finding:
    """Judge whether an MoE layer with one expert per token takes the FLOPs
    of a dense layer of that width.
    """
    from metacount.algebra.writing import in_letters
    from metacount.claims.judges.algebra import compared

    spec = spec_of(claim)
    moe = value(spec, "moe_flops")
    d, m = spec.d_model, spec.d_ff_expert
    dense_ = int(sublayers.ffn_matmul_flops(1, d, m, gated=spec.gated))
    truth = letters(spec, "moe_flops").subs(legend.sympy_symbols(["top_k"])["top_k"], spec.top_k)
    named = legend.sympy_symbols(["d_model", "d_ff_expert"])
    said = sublayers.ffn_matmul_flops(1, named["d_model"], named["d_ff_expert"], gated=spec.gated)
    difference, verdict = compared(truth, said)
    more = exact(moe - dense_)
    return Finding(
        verdict=verdict,
        says=say(
            "{moe} FLOPs per token against {dense} at d = {d}, m = {m}: {more} more, or {percent}.",
            moe=exact(moe),
            dense=exact(dense_),
            d=str(d),
            m=str(m),
            more=more,
            percent=percent(Fraction(moe - dense_, dense_), 3),
        ),
        correct=in_letters(truth),
        computation=(
            f"MoE, k = {spec.top_k}: {in_letters(truth)} = "
            f"{in_numbers(in_letters(truth), spec)} = {exact(moe)}",
            say(
                "dense: {steps}",
                steps=f"{in_letters(said)} = "
                f"{in_numbers(in_letters(said), spec)} = {exact(dense_)}",
            ),
            say(
                "difference: {steps}",
                steps=f"{in_letters(difference)} = "
                f"{in_numbers(in_letters(difference), spec)} = {more}",
            ),
        ),
        values={"dense": dense_, "more": moe - dense_},
        witness=WITNESS,
    )
