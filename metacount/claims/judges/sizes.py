"""Claims about sizes of a model, and about what an indexer leaves of its attention.

The catalog has the sizes from their source; the formulas count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.claims.finding import CONDITIONAL, RIGHT, WRONG, Claim, Finding
from metacount.claims.judges.counted import TO_CATALOG, WITNESS
from metacount.claims.parts import model_of, spec_of, value
from metacount.claims.text import Listed, Said, Words, listed, say
from metacount.formulas.model import kv_cache_bytes_per_token, kv_cache_values
from metacount.formulas.pieces import indexed_layers
from metacount.formulas.sublayers import attention_by_selection
from metacount.spec import FIELDS, ModelSpec
from metacount.units import exact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def two_stacks(claim: Claim) -> Finding:
    """Judge whether the fields hold;
    `n_layers` is said of a model that may have two stacks of layers.
    """
    spec = spec_of(claim)
    different = [name for name, said in claim.claimed.items() if getattr(spec, name) != said]
    both = value(spec, "params")
    n = spec.n_layers
    shown = f"{spec.n_encoder_layers} + {n}"
    half = spec.replace(n_layers=n - n // 2, n_encoder_layers=n // 2) if spec.has_encoder else spec
    verdict = WRONG if different else CONDITIONAL if spec.has_encoder else RIGHT
    published = model_of(claim).published.params
    of_half = value(half, "params")
    values: dict[str, object] = {"half": of_half, "published": published}
    return Finding(
        verdict=verdict,
        says=say("Not so: {fields}.", fields=_are({x: getattr(spec, x) for x in different}))
        if different
        else say("All of it holds, but that its {n} layers are {blocks} blocks.", n=n, blocks=shown)
        if spec.has_encoder
        else say("All of it holds."),
        correct=", ".join(f"{name} {getattr(spec, name)}" for name in claim.claimed)
        + (f", n_encoder_layers {spec.n_encoder_layers}" if spec.has_encoder else ""),
        computation=(
            *(
                say(
                    "{field}: {value}, stated {stated}",
                    field=name,
                    value=str(getattr(spec, name)),
                    stated=str(said),
                )
                for name, said in claim.claimed.items()
            ),
            say("{blocks} blocks: {n}", blocks=shown, n=exact(both)),
            say("{blocks} blocks in all: {n}", blocks=n, n=exact(of_half)),
            say(
                "published: {n}", n=say("no exact count") if published is None else exact(published)
            ),
        ),
        values=values,
        witness=TO_CATALOG,
        condition=say(
            "{n} layers means {encoder} in the encoder and {n} in the decoder; the rest "
            "holds as it stands",
            n=n,
            encoder=spec.n_encoder_layers,
        ),
    )


def _are(found: Mapping[str, object]) -> Listed:
    """List each field with its value."""
    return listed(
        say("{field} is {value}", field=name, value=size if isinstance(size, Said) else str(size))
        for name, size in found.items()
    )


def fields(claim: Claim) -> Finding:
    """Judge whether sizes of a model are exactly as claimed."""
    spec = spec_of(claim)
    found = {name: getattr(spec, name) for name in claim.claimed}
    different = {name: said for name, said in claim.claimed.items() if found[name] != said}
    # what a model does not have is None in its spec
    told = {name: say("none") if size is None else str(size) for name, size in found.items()}
    lines: list[Words] = [
        say("{field}: {value}, stated {stated}", field=name, value=told[name], stated=str(said))
        for name, said in claim.claimed.items()
    ]
    if spec.is_moe:
        lines.append(f"n_shared_experts: {spec.n_shared_experts}")
    return Finding(
        verdict=WRONG if different else RIGHT,
        says=say("In fact {fields}.", fields=_are({name: told[name] for name in different}))
        if different
        else say("It is so."),
        correct=listed(say("{part} {n}", part=name, n=size) for name, size in told.items()),
        computation=tuple(lines),
        values={},
        witness=say("catalog"),
    )


def selected_work(claim: Claim) -> Finding:
    """Judge whether attention over what an indexer leaves, the index included,
    is linear in the context.

    Options: `seq_len`, more than the indexer leaves, and a multiple of its blocks. Linear means
    that equal steps of the context add equally much. What is chosen is told of all layers, and of
    the same model with an indexer in each.
    """
    spec, n = spec_of(claim), claim.options["seq_len"]
    runs = [attention_by_selection(spec, batch_size=1, seq_len=k * n) for k in (1, 2, 3)]
    grows = _bends(runs)
    every = spec.replace(index_pattern="I") if spec.index_block_len is not None else spec
    chosen = _bends([attention_by_selection(every, batch_size=1, seq_len=k * n) for k in (1, 2, 3)])
    here = {name: exact(count) for name, count in runs[0].items()}
    straight = grows["selected_attention_flops"] == grows["index_flops"] == 0
    return Finding(
        verdict=RIGHT if straight else WRONG,
        says=say(
            "At {n} tokens attention over what is chosen takes {selected} FLOPs, the index "
            "itself {index}, attention over everything {dense}.",
            n=exact(n),
            selected=here["selected_attention_flops"],
            index=here["index_flops"],
            dense=here["dense_attention_flops"],
        ),
        correct=say(
            "chosen {selected}, index {index}",
            selected=here["selected_attention_flops"],
            index=here["index_flops"],
        ),
        computation=(
            say("over what is chosen: {n}", n=here["selected_attention_flops"]),
            say("the index itself: {n}", n=here["index_flops"]),
            say("over everything: {n}", n=here["dense_attention_flops"]),
        ),
        values={
            "selected_is_linear": grows["selected_attention_flops"] == 0,
            "chosen_is_linear": chosen["selected_attention_flops"] == 0,
            "index_is_linear": grows["index_flops"] == 0,
        },
        witness=WITNESS,
    )


def _bends(runs: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Compute how much more the second step adds, of counts at one length,
    twice and three times it.
    """
    one, two, three = runs
    return {name: three[name] - 2 * two[name] + one[name] for name in one}


def selected_cache(claim: Claim) -> Finding:
    """Judge whether a model with an indexer keeps less of a token than the same model without."""
    spec = spec_of(claim)
    if spec.index_block_len is not None:
        return _cache_of_blocks(spec)
    with_index, without = kv_cache_values(spec), kv_cache_values(unindexed(spec))
    return Finding(
        verdict=RIGHT if with_index < without else WRONG,
        says=say(
            "A token leaves {kept} values in each layer's cache, and {without} without the "
            "indexer.",
            kept=exact(with_index),
            without=exact(without),
        ),
        correct=say("{kept} against {without}", kept=exact(with_index), without=exact(without)),
        computation=(
            f"d_c + d_r + d_I = {spec.kv_lora_rank} + {spec.qk_rope_head_dim} + "
            f"{spec.index_head_dim} = {with_index}",
            f"d_c + d_r = {spec.kv_lora_rank} + {spec.qk_rope_head_dim} = {without}",
        ),
        values={"more": with_index - without},
        witness=WITNESS,
    )


def _cache_of_blocks(spec: ModelSpec) -> Finding:
    """Judge whether a model with indexers in some layers keeps less
    of a token than the same model without.
    """
    with_index, without = (
        kv_cache_bytes_per_token(one, bytes_per_value=1) for one in (spec, unindexed(spec))
    )
    layers, indexed = spec.n_layers, indexed_layers(spec, spec.n_layers)
    each = f"{layers}·2·{spec.n_kv_heads}·{spec.head_dim}"
    return Finding(
        verdict=RIGHT if with_index < without else WRONG,
        says=say(
            "A token leaves {kept} values in the caches of all layers, and {without} without the "
            "indexers.",
            kept=exact(with_index),
            without=exact(without),
        ),
        correct=say("{kept} against {without}", kept=exact(with_index), without=exact(without)),
        computation=(
            f"N·2·h_kv·h_d + N_i·d_I = {each} + {indexed}·{spec.index_head_dim} = {with_index}",
            f"N·2·h_kv·h_d = {each} = {without}",
        ),
        values={"more": with_index - without, "n_indexed": indexed},
        witness=WITNESS,
    )


def unindexed(spec: ModelSpec) -> ModelSpec:
    """Return the model without indexers, whose attention reads every position."""
    fields = (name for name in FIELDS if name.startswith(("index_", "n_index_")))
    return spec.replace(**{name: FIELDS[name].absent for name in fields})
