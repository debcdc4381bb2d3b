"""Claims about a whole model that its published count decides: what is missing, tied or gated."""

from __future__ import annotations

from metacount.claims import labels
from metacount.claims.finding import RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import TO_CATALOG, WITNESS
from metacount.claims.parts import computation, model_of, spec_of, value, without_biases
from metacount.claims.text import Said, listed, say
from metacount.formulas import model as formulas
from metacount.units import exact


def _part(words: str, steps: str) -> Said:
    return say("{part}: {steps}", part=say(words), steps=steps)


def sum_and_rest(claim: Claim) -> Finding:
    """Judge whether blocks and token table have so many parameters and such a sum, and biases alone
    are missing to the whole. Claimed: `block`, `table`, `sum`, `whole`.
    """
    spec = spec_of(claim)
    said = {name: labels.parse(text) for name, text in claim.claimed.items()}
    blocks, table = value(spec, "layers_matrices"), value(spec, "token_table")
    total, biases = value(spec, "params"), value(spec, "layers_biases")
    found = {
        "block": value(spec, "layer_matrices"),
        "table": table,
        "sum": blocks + table,
        "whole": total,
    }
    holds = {name: said[name].holds(found[name]) for name in said}
    rest = total - blocks - table
    norms = formulas.params_by_role(spec)["norm"]
    positions = rest - biases - norms
    not_so = [
        say(
            "{part} {n} (it rounds to {rounded})",
            part=say(name),
            n=said[name].text,
            rounded=said[name].rounded(found[name]),
        )
        for name in said
        if not holds[name]
    ]
    return Finding(
        verdict=RIGHT if all(holds.values()) and rest == biases else WRONG,
        says=say("Not so: {fields}.", fields=listed(not_so))
        if not_so
        else say("The stated numbers are so."),
        correct=exact(total),
        computation=(
            _part("matrices of a block", computation(spec, "layer_matrices")),
            _part("matrices of the blocks", computation(spec, "layers_matrices")),
            _part("token table", computation(spec, "token_table")),
            _part("sum", f"{exact(blocks)} + {exact(table)} = {exact(blocks + table)}"),
            _part("rest", f"{exact(total)} - {exact(blocks + table)} = {exact(rest)}"),
            say(
                "not in the matrices: norms {norms}, biases {biases}, other (position table, "
                "head) {other}",
                norms=exact(norms),
                biases=exact(biases),
                other=exact(positions),
            ),
        ),
        values={"rest": rest, "norms": norms, "biases": biases, "other": positions},
        witness=WITNESS,
    )


def tied_head(claim: Claim) -> Finding:
    """Judge whether the head shares the embedding, and biases and norms bring the model from one
    number to another; the published count decides about the head. Claimed: `without` them, `with`
    them.
    """
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
    known = say("no exact count is published")
    if published is not None:
        known = say("the published count is {n}", n=exact(published))
    return Finding(
        verdict=RIGHT if holds else WRONG,
        says=say(
            "With the embedding as its head the model has {tied} parameters, with a head of "
            "its own {untied}; {known}. Without norms and biases that is {small}, or {less}; "
            "with them {more}.",
            tied=exact(tied),
            untied=exact(untied),
            known=known,
            small=exact(small),
            less=less.rounded(small),
            more=more.rounded(total),
        ),
        correct=exact(total),
        computation=(
            say(
                "without a head of its own: {tied}, or {rounded}",
                tied=exact(tied),
                rounded=less.rounded(tied),
            ),
            _part("head", computation(spec.replace(tie_embeddings=False), "head")),
            _part("sum", f"{exact(tied)} + {exact(untied - tied)} = {exact(untied)}"),
            say("norms {norms}, biases {biases}", norms=exact(norms), biases=exact(biases)),
            known,
        ),
        values={
            "norms": norms,
            "biases": biases,
            "less": less.text,
            "more": more.text,
            "head_is_the_step": not shares and less.holds(tied) and more.holds(untied),
        },
        witness=TO_CATALOG,
    )


FFN_KINDS = {
    ("gated",): "the one with a gate",
    ("plain",): "the one without",
    ("gated", "plain"): "both",
    (): "neither",
}


def plain_ffn(claim: Claim) -> Finding:
    """Judge whether the activation is GELU and the FFN is plain, two matrices:
    the published count decides.
    """
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
    known = say("no exact count is published")
    if published is not None:
        known = say(
            "the published count, {n}, is {kind}",
            n=exact(published),
            kind=say(FFN_KINDS[tuple(fits)]),
        )
    return Finding(
        verdict=RIGHT if gelu and is_plain else WRONG,
        says=say(
            "With a gate the model has {gated} parameters, without one {plain}; {known}.",
            gated=exact(counts["gated"]),
            plain=exact(counts["plain"]),
            known=known,
        ),
        correct=say(
            "{kinds}, {n} in the model",
            n=exact(value(spec, "params")),
            kinds=listed(map(say, fits or ["unknown"]), " or "),
        ),
        computation=(
            _part("gated, per layer", computation(spec.replace(gated=True), "ffn")),
            _part("plain, per layer", computation(spec.replace(gated=False), "ffn")),
            say(
                "model: gated {gated}, plain {plain}; {known}",
                gated=exact(counts["gated"]),
                plain=exact(counts["plain"]),
                known=known,
            ),
            say("activation in the catalog: {name}", name=spec.activation),
        ),
        values={"gelu": gelu, "gate": "gated" in fits},
        witness=TO_CATALOG,
    )
