"""Embeddings and heads: what stands before and after the blocks, tied or not."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from metacount import catalog
from metacount.formulas import ends, model, sublayers
from metacount.teaching.page import Exercise, closed, rows
from metacount.teaching.parts import value
from metacount.units import share

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("gpt2-medium", "bert-base", "llama-7b", "qwen3-0.6b")
NEEDS = "a vocabulary"
FAMILY = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model has an embedding: a body alone has no tables to show."""
    return spec.embedding is not None


def table_rows(here: Here) -> Rows:
    """List every table and matrix at the two ends, with its shape and its parameters."""
    spec = here.spec
    found: list[tuple[object, ...]] = []
    width = ends.table_width(spec)
    letter = "d" if spec.d_embedding is None else "d_e"

    def add(word: str, shape: str, sizes: tuple[int, ...], params: int) -> None:
        found.append((here.say(word), f"[{shape}]", str(list(sizes)), params))

    add("token table", f"V, {letter}", (spec.vocab_size, width), sublayers.token_table_params(spec))
    if learned := learned_params(spec):
        add("position table", f"P, {letter}", (spec.n_positions, width), learned)
    if spec.n_token_types:
        sizes = (spec.n_token_types, width)
        add("token types", f"V_t, {letter}", sizes, spec.n_token_types * width)
    if spec.head is not None:
        word = "head, the token table again" if spec.tie_embeddings else "head"
        added = 0 if spec.tie_embeddings else sublayers.token_table_params(spec)
        add(word, f"V, {letter}", (spec.vocab_size, width), added)
    if spec.pooler:
        add(
            "pooler, with its bias",
            "d, d",
            (spec.d_model, spec.d_model),
            spec.d_model**2 + spec.d_model,
        )
    rest = (
        sum(sublayers.end_params(spec).values())
        + learned
        - sum(each[-1] for each in found if isinstance(each[-1], int))
    )
    if rest:
        found.append((here.say("vectors and projections"), "", "", rest))
    found.append((here.say("both ends"), "", "", at_the_ends(spec)))
    return rows(found)


def learned_params(spec: ModelSpec) -> int:
    """Count the parameters of the tables of positions, one in each stack."""
    if spec.position != "learned" or spec.n_positions is None:
        return 0
    one = sublayers.learned_table_params(spec.n_positions, ends.table_width(spec))
    return int(one * len(spec.stacks))


def at_the_ends(spec: ModelSpec) -> int:
    """Count all parameters before and after the blocks, final norms apart."""
    return int(sum(sublayers.end_params(spec).values())) + learned_params(spec)


def untied(here: Here) -> int:
    """Count the parameters of the whole model with a head of its own."""
    return _with_tie(here.spec, False)


def tied(here: Here) -> int:
    """Count the parameters of the whole model with the token table as its head."""
    return _with_tie(here.spec, True)


def _with_tie(spec: ModelSpec, tie: bool) -> int:
    if spec.head is None:
        return int(model.params(spec))
    return int(model.params(spec.replace(tie_embeddings=tie)))


@cache
def family() -> Rows:
    """List the share of embedding and head in models of one family, small to large."""
    found = []
    for id in FAMILY:
        spec = catalog.entry(id).spec()
        table, whole = sublayers.token_table_params(spec), model.params(spec)
        both = table if spec.tie_embeddings else 2 * table
        found.append((id, spec.d_model, spec.tie_embeddings, table, share(both, whole)))
    return [tuple(each) for each in found]


def answer(here: Here) -> Exercise:
    """Make the exercise: the parameters with the other choice of tying."""
    flipped = not here.spec.tie_embeddings
    spec = here.spec.replace(tie_embeddings=flipped) if here.spec.head else here.spec
    settings = (f"tie_embeddings={str(flipped).lower()}",) if here.spec.head else ()
    return Exercise(formula=closed(spec, "params"), settings=settings)


VALUES: Values = {
    "table": table_rows,
    "token_table": lambda here: sublayers.token_table_params(here.spec),
    "ends": lambda here: at_the_ends(here.spec),
    "ends_share": lambda here: Fraction(at_the_ends(here.spec), int(model.params(here.spec))),
    "params": lambda here: model.params(here.spec),
    "head": lambda here: here.spec.head is not None,
    "tie": lambda here: here.spec.head is not None and here.spec.tie_embeddings,
    "learned": lambda here: learned_params(here.spec) > 0,
    "learned_params": lambda here: learned_params(here.spec),
    "biases": lambda here: value(here.spec, "layers_biases"),
    "tied": tied,
    "untied": untied,
    "label": lambda here: _label(here),
    "published": lambda here: _label(here) is not None,
    "blocks": lambda here: int(model.params(here.spec)) - at_the_ends(here.spec),
    "head_flops": lambda here: sublayers.end_flops(here.spec, {"tokens": 1, "sequences": 0})[
        "head"
    ],
    "family": lambda here: family(),
    "answer": answer,
}


def _label(here: Here) -> str | None:
    """Return the size that was printed for the model, where one was,
    and the model was not changed.
    """
    found = here.model.published
    return None if found is None else found.published.label
