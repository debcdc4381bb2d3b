"""Claims that give a number or a size of a model, or lay two beside each other."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.errors import SpecError
from metacount.formulas import feed_forward, model, sublayers
from metacount.formulas.pieces import indexed_layers
from metacount.spec import FIELDS
from metacount.teaching.claim import WRONG, Claim, Finding, found, label
from metacount.teaching.parts import (
    computation,
    model_of,
    named,
    spec_of,
    value,
    without_biases,
)
from metacount.teaching.texts import computed
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from metacount.formulas.dim import Dim
    from metacount.spec import ModelSpec
    from metacount.teaching.claim import Label

    Row = dict[str, object]


def beside(stated: Label, count: int) -> Row:
    """Lay a claimed number beside the exact one: does it hold, to what that rounds, how far off."""
    return {
        "label": stated.text,
        "exact": count,
        "holds": stated.holds(count),
        "rounds": bool(stated.step),
        "rounded": stated.rounded(count),
        **apart(stated.value, count),
    }


def number(n: int | Fraction, written: Callable[[int], str] = exact) -> str:
    """Format a number, which need not be whole.

    >>> number(1234), number(Fraction(1, 3))
    ('1,234', '1/3')
    """
    return written(int(n)) if Fraction(n).denominator == 1 else str(n)


def apart(said: int | Fraction, count: int) -> Row:
    """Compute how far a number is from the exact one.

    >>> apart(7, 10), apart(1010, 10)
    ({'few': True, 'off': '3'}, {'few': False, 'off': '1,000'})
    """
    return {"few": said < count, "off": number(abs(Fraction(said) - count))}


def count(claim: Claim) -> Finding:
    """Judge whether a part of a model has so many parameters.

    Options: `part`, `also` (further parts to show).

    With `missing`, the name of a part whose absence may explain the difference. With `because`,
    what the statement gives as a reason has to hold too; with `checkpoint`, the published number of
    values in the checkpoint has to be the claimed one; where it is `values`, it is only said.
    """
    spec, stated, options = spec_of(claim), label(claim.claimed), claim.options
    part = options["part"]
    n = value(spec, part)
    holds = stated.holds(n)
    values: dict[str, object] = {}
    if "because" in options:
        reason = all(computed(text, named(claim)) is True for text in options["because"])
        values["reason_holds"] = reason
        holds = holds and reason
    if "missing" in options:
        missing = value(spec, options["missing"])
        values["missing"] = missing
        values["missing_explains"] = stated.value + missing == n
    published = model_of(claim).published
    stored = model_of(claim).stored_checkpoint if options.get("checkpoint") else None
    if stored is not None:
        holds = holds and (options["checkpoint"] == "values" or stated.holds(stored.total))
    return found(
        [holds],
        found=n,
        several=bool(options.get("also")),
        parts=[
            {"part": name.replace("_", " "), "steps": computation(spec, name)}
            for name in (part, *options.get("also", []))
        ],
        first=computation(spec, part),
        published=published.params if part == "params" else None,
        source=published.params_source or "",
        asks_checkpoint=bool(options.get("checkpoint")),
        in_bytes=options.get("checkpoint") != "values",
        stored_values=stored.total if stored else None,
        **beside(stated, n),
        **values,
    )


def counts(claim: Claim) -> Finding:
    """Judge whether several parts have so many parameters each.

    Options: `parts`, by the name of each number.
    """
    spec = spec_of(claim)
    parts = {name: value(spec, part) for name, part in claim.options["parts"].items()}
    stated = {name: label(text) for name, text in claim.claimed.items()}
    first, *others = parts.values()
    return found(
        [all(stated[name].holds(parts[name]) for name in stated)],
        numbers=[{"part": name, **beside(stated[name], n)} for name, n in parts.items()],
        steps=_computations(claim),
        more=Fraction(first - others[0], others[0]),
        **parts,
    )


def _computations(claim: Claim) -> list[Row]:
    """Write each of the claim's parts in letters and in numbers."""
    spec = spec_of(claim)
    return [
        {"part": name, "steps": computation(spec, part)}
        for name, part in claim.options["parts"].items()
    ]


def shares(claim: Claim) -> Finding:
    """Judge whether parts make up such shares of a whole. Options: `parts` by name, `whole`."""
    spec, options = spec_of(claim), claim.options
    whole = value(spec, options["whole"])
    stated = {name: label(text) for name, text in claim.claimed.items()}
    rows: list[Row] = []
    holds = []
    for name, part in options["parts"].items():
        n = value(spec, part)
        ratio = Fraction(n, whole)
        row = {"part": name, "n": n, "whole": whole, "ratio": ratio, "label": stated[name].text}
        held = stated[name].holds(ratio)
        rows.append({**row, "holds": held, "rounded": stated[name].rounded(ratio)})
        holds.append(held)
    return found([all(holds)], shares=rows)


def readings(claim: Claim) -> Finding:
    """Judge a number that can be read in several ways; options: `parts`, by the words of each."""
    spec, stated = spec_of(claim), label(claim.claimed)
    rows = [
        {"part": name, **beside(stated, value(spec, part))}
        for name, part in claim.options["parts"].items()
    ]
    return found(
        (bool(row["holds"]) for row in rows),
        readings=rows,
        rounds=bool(stated.step),
        held=[row["part"] for row in rows if row["holds"]],
        steps=_computations(claim),
    )


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


def gated_width(claim: Claim) -> Finding:
    """Judge whether the rounded 2/3 rule gives so wide an FFN, of about a plain one's parameters.

    Options: `d_model`, `multiple_of`, `within` (how near "about" is).
    """
    d, multiple = claim.options["d_model"], claim.options["multiple_of"]
    if min(d, multiple) < 1:
        raise ValueError(f"widths are positive: got {d} and {multiple}")
    within, stated = label(claim.options["within"]), label(claim.claimed)
    width = feed_forward.gated_d_ff(d, multiple_of=multiple)
    gated, plain = sublayers.glu_params(d, width), sublayers.plain_params(d, 4 * d)
    # the least width above d whose 8/3 is a multiple already; 3·multiple is one at the latest
    even = next(n for n in range(d + 1, d + 3 * multiple + 1) if 8 * n % (3 * multiple) == 0)
    even_gated = sublayers.glu_params(even, feed_forward.gated_d_ff(even, multiple_of=multiple))
    even_plain = sublayers.plain_params(even, 4 * even)
    more = Fraction(gated - plain, plain)
    near = abs(more) <= within.value
    return found(
        [stated.holds(width) and near],
        d=str(d),
        multiple_of=multiple,
        multiple=str(multiple),
        width=width,
        holds=stated.holds(width),
        near=near,
        about=within.text,
        more=more,
        thirds=f"{float(Fraction(8 * d, 3)):,.2f}",
        times=str(width // multiple),
        m=str(width),
        gated_params=gated,
        plain_params=plain,
        even=even,
        even_d=str(even),
        even_gated=even_gated,
        even_plain=even_plain,
        even_apart=even_gated - even_plain,
    )


def same_part(claim: Claim) -> Finding:
    """Judge whether a part of one model is as large as a part of another.

    Options: `part`, `other`, `other_part`, `instead` (a model whose part it may be).
    """
    options, spec = claim.options, spec_of(claim)
    entry, third = catalog.entry(options["other"]), catalog.entry(options["instead"])
    other, part = entry.spec(), options["other_part"]
    one, two = value(spec, options["part"]), value(other, part)
    same = (spec.d_model, spec.d_ff_expert, spec.gated) == (other.d_model, other.d_ff, other.gated)
    return found(
        [one == two and same],
        one=one,
        two=two,
        model=claim.model,
        other_id=options["other"],
        third=third.id,
        one_steps=computation(spec, options["part"]),
        two_steps=computation(other, part),
        third_steps=computation(third.spec(), part),
        instead=third.name,
        is_instead=one == value(third.spec(), part),
        other=entry.name,
        other_d_model=other.d_model,
        other_width=other.d_ff,
    )


def token_cost(claim: Claim) -> Finding:
    """Judge whether active parameters and multiply-adds of one token both round to the label.

    Options: `other`, a dense model of about that size.
    """
    spec, stated = spec_of(claim), label(claim.claimed)
    other = catalog.entry(claim.options["other"])
    active = value(spec, "active_params")
    # every matrix product counts 2 FLOPs per multiply-add
    macs, other_macs = (value(s, "decode_flops") // 2 for s in (spec, other.spec()))
    return found(
        [stated.holds(active) and stated.holds(macs)],
        active=active,
        macs=macs,
        flops=2 * macs,
        active_rounded=stated.rounded(active),
        macs_rounded=stated.rounded(macs),
        active_steps=computation(spec, "active_params"),
        other=other.name,
        other_macs=other_macs,
        other_flops=2 * other_macs,
        total=value(spec, "params"),
    )


# what a model of some length takes or keeps -> its count
OF_LENGTH: dict[str, Callable[[ModelSpec, Dim], Dim]] = {
    "decode_flops": lambda spec, n: model.decode_matmul_flops(spec, batch_size=1, kv_len=n),
    "kept_values": lambda spec, n: model.kv_cache_bytes(
        spec, batch_size=1, seq_len=n, bytes_per_value=1
    ),
}


def same_at_length(claim: Claim) -> Finding:
    """Judge whether a count is the same from some length on: what n further tokens add is 0.

    Options: `of` (`decode_flops` of a token that attends to so many positions, itself included;
    `kept_values` of the KV cache after so many), `from`, `to` (a longer one, to be shown).
    """
    import sympy

    from metacount.algebra.writing import in_letters

    spec, options = spec_of(claim), claim.options
    start, end, counted = options["from"], options["to"], OF_LENGTH[options["of"]]
    if not 0 < start < end:
        raise ValueError(f"the second length is the longer one: got {start} and {end}")
    more = sympy.Symbol("n", integer=True, nonnegative=True)
    first, last = int(counted(spec, start)), int(counted(spec, end))
    step = int(counted(spec, start + 1)) - first
    added = sympy.expand(counted(spec, start + more) - first)
    linear = bool(added == step * more)
    return found(
        [added == 0],
        start=start,
        end=end,
        first=first,
        last=last,
        step=step,
        linear=linear,
        flops=options["of"] == "decode_flops",
        formula=f"{exact(step)}·n" if linear and step else in_letters(added),
    )


# Fields and sizes of a model, as the catalog has them from their source.


def fields(claim: Claim) -> Finding:
    """Judge whether sizes of a model are exactly as claimed."""
    spec = spec_of(claim)
    rows = [
        {
            "field": name,
            "value": str(getattr(spec, name)),
            "absent": getattr(spec, name) is None,  # what a model does not have
            "stated": str(said),
            "holds": getattr(spec, name) == said,
        }
        for name, said in claim.claimed.items()
    ]
    return found(
        [all(row["holds"] for row in rows)],
        fields=rows,
        different=[row for row in rows if not row["holds"]],
        moe=spec.is_moe,
        shared=str(spec.n_shared_experts),
    )


def two_stacks(claim: Claim) -> Finding:
    """Judge whether fields hold; `n_layers` is said of a model that may have two stacks."""
    spec = spec_of(claim)
    finding = fields(claim)
    n, n_encoder = spec.n_layers, spec.n_encoder_layers
    half = spec.replace(n_layers=n - n // 2, n_encoder_layers=n // 2) if spec.has_encoder else spec
    each = [f"{name} {getattr(spec, name)}" for name in claim.claimed]
    holds = [True, not spec.has_encoder] if finding.verdict != WRONG else [False]
    return found(
        holds,
        **finding.values,
        each=", ".join([*each, *([f"n_encoder_layers {n_encoder}"] if spec.has_encoder else [])]),
        blocks=f"{n_encoder} + {n}",
        n=str(n),
        n_encoder=str(n_encoder),
        both=value(spec, "params"),
        half=value(half, "params"),
        published=model_of(claim).published.params,
    )


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


def sum_and_rest(claim: Claim) -> Finding:
    """Judge whether blocks and token table have so many parameters and such a sum.

    And whether biases alone are missing to the whole. Claimed: `block`, `table`, `sum`, `whole`.
    """
    spec = spec_of(claim)
    stated = {name: label(text) for name, text in claim.claimed.items()}
    blocks, table = value(spec, "layers_matrices"), value(spec, "token_table")
    total, biases = value(spec, "params"), value(spec, "layers_biases")
    counts_ = {
        "block": value(spec, "layer_matrices"),
        "table": table,
        "sum": blocks + table,
        "whole": total,
    }
    rest = total - blocks - table
    norms = model.params_by_role(spec)["norm"]
    rows = [{"part": name, **beside(stated[name], counts_[name])} for name in stated]
    not_so = [row for row in rows if not row["holds"]]
    return found(
        [not not_so and rest == biases],
        not_so=not_so,
        total=total,
        blocks=blocks,
        table=table,
        both=blocks + table,
        block_steps=computation(spec, "layer_matrices"),
        blocks_steps=computation(spec, "layers_matrices"),
        table_steps=computation(spec, "token_table"),
        rest=rest,
        norms=norms,
        biases=biases,
        other=rest - biases - norms,
    )


def tied_head(claim: Claim) -> Finding:
    """Judge whether the head is the embedding, and biases and norms are the step of two numbers.

    The published count decides about the head. Claimed: `without` them, `with` them.
    """
    spec = spec_of(claim)
    less, more = (label(claim.claimed[name]) for name in ("without", "with"))
    tied, untied = (model.params(spec.replace(tie_embeddings=shared)) for shared in (True, False))
    published = model_of(claim).published.params
    # without a published count the catalog's field is all there is
    shares_ = spec.tie_embeddings if published is None else published == tied
    total = tied if shares_ else untied
    norms = model.params_by_role(spec)["norm"]
    biases = value(spec, "params") - model.params(without_biases(spec))
    bare = total - norms - biases
    return found(
        [shares_ and less.holds(bare) and more.holds(total)],
        tied=tied,
        untied=untied,
        added=untied - tied,
        published=published,
        bare=bare,
        total=total,
        bare_rounded=less.rounded(bare),
        total_rounded=more.rounded(total),
        tied_rounded=less.rounded(tied),
        head_steps=computation(spec.replace(tie_embeddings=False), "head"),
        norms=norms,
        biases=biases,
        less=less.text,
        more=more.text,
        head_is_the_step=not shares_ and less.holds(tied) and more.holds(untied),
    )


def plain_ffn(claim: Claim) -> Finding:
    """Judge whether the activation is GELU and the FFN plain: the published count decides."""
    spec = spec_of(claim)
    published = model_of(claim).published.params
    specs = {"gated": spec.replace(gated=True), "plain": spec.replace(gated=False)}
    params = {name: model.params(each) for name, each in specs.items()}
    fits = [name for name, n in params.items() if n == published]
    # without a published count the sizes in the catalog are all there is
    is_plain = "plain" in fits if published is not None else not spec.gated
    gelu = spec.activation.startswith("gelu")
    return found(
        [gelu and is_plain],
        with_gate=params["gated"],
        without_gate=params["plain"],
        published=published,
        fits=fits,
        both_fit=len(fits) == 2,
        gate="gated" in fits,
        no_gate="plain" in fits,
        total=value(spec, "params"),
        with_steps=computation(specs["gated"], "ffn"),
        without_steps=computation(specs["plain"], "ffn"),
        activation=spec.activation,
        gelu=gelu,
    )
