"""From a paper to a count: which words decide, which block changed, does the label agree."""

from __future__ import annotations

from functools import cache

from metacount import catalog
from metacount.algebra.writing import in_letters
from metacount.errors import SpecError
from metacount.formulas import model
from metacount.spec import Request, legend
from metacount.teaching.page import Exercise, asked, closed, rows
from metacount.textbook.closed_form import closed_form
from metacount.textbook.count import fitted
from metacount.units import exact, short, signed

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.spec import ModelSpec
    from metacount.teaching.page import Here, Rows, Values

SUCH_AS = ("llama3-8b", "gpt3-175b", "palm-540b", "deepseek-v3")
NEEDS = "a decoder"
BASE = "llama-7b"  # the model that others are laid beside
SIZES = (
    "d_model",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "d_ff",
    "d_ff_expert",
    "n_experts",
    "n_shared_experts",
    "top_k",
    "q_lora_rank",
    "kv_lora_rank",
    "vocab_size",
    "n_positions",
)
CHOICES = (
    "attention",
    "norm",
    "norm_placement",
    "qk_norm",
    "activation",
    "gated",
    "position",
    "tie_embeddings",
)
ROOM = 34  # cells for names that others give a size
# models of the years of scaling, in the order of their size
SHOWN = (
    "t5-11b",
    "gpt3-175b",
    "pangu-alpha-207b",
    "jurassic1-178b",
    "gopher-280b",
    "mt-nlg-530b",
    "lamda-137b",
    "chinchilla-70b",
    "palm-540b",
    "opt-175b",
    "bloom-176b",
    "galactica-120b",
    "glm-130b",
    "mpt-30b",
    "falcon-180b",
    "llama-65b",
    "llama2-70b",
    "qwen1.5-72b",
    "gemma2-9b",
    "mixtral-8x7b",
    "deepseek-v2",
    "llama3.1-405b",
    "deepseek-v3",
)


def fits(spec: ModelSpec) -> bool:
    """Tell whether a model can be laid beside a decoder."""
    return bool(spec.kind in ("decoder", "prefix-decoder"))


def sizes(here: Here) -> Rows:
    """List sizes under our names and some of the names that papers and configs give them."""
    found = []
    for name in SIZES:
        if value := getattr(here.spec, name):
            term = legend.by_name(name)
            others = ", ".join([word for word in term.elsewhere if word != name][:2])
            if len(others) > ROOM:
                others = others.partition(",")[0]
            found.append((others or name, name, term.letter, value))
    return rows(found)


def choices(here: Here) -> Rows:
    """Compare the model's choices with those of `BASE`."""
    base = catalog.entry(BASE).spec()
    found: Rows = []
    for name in CHOICES:
        here_, there = _word(here.spec, name), _word(base, name)
        found.append((name, there, here_, "" if here_ == there else here.say("changed")))
    return found


def _word(spec: ModelSpec, name: str) -> str:
    if name == "attention" and spec.kv_lora_rank is None:
        if spec.n_kv_heads == spec.n_heads:
            return "MHA"
        return "MQA" if spec.n_kv_heads == 1 else "GQA"
    return "MLA" if name == "attention" else str(getattr(spec, name)).lower()


def parts(here: Here) -> Rows:
    """List each role's closed form and its value."""
    form = closed_form(here.spec, fitted(here.spec, Request()), "params")
    return [
        (role, exact(int(form.values[role])), in_letters(expr)) for role, expr in form.parts.items()
    ]


def changed(here: Here) -> Rows:
    """List the parameters role by role: the base model's, this one's, and the difference."""
    base = model.params_by_role(catalog.entry(BASE).spec())
    own = model.params_by_role(here.spec)
    found = [
        (role, exact(int(base[role])), exact(int(own[role])), signed(int(own[role] - base[role])))
        for role in own
        if own[role] or base[role]
    ]
    whole = int(sum(base.values())), int(sum(own.values()))
    total = (here.say("total"), exact(whole[0]), exact(whole[1]), signed(whole[1] - whole[0]))
    return [*found, total]


@cache
def table() -> Rows:
    """List models of the catalog with what decides their counts."""
    found: Rows = []
    for id in SHOWN:
        try:
            spec = catalog.entry(id).spec()
        except SpecError:  # in the catalog, but not expressible: it has no row
            continue
        norm = "LN" if spec.norm == "layernorm" else "RMS"
        act = ("glu " if spec.gated else "") + spec.activation.removesuffix("_tanh")
        found.append(
            (
                id,
                short(int(model.params(spec))),
                f"{spec.norm_placement} {norm}",
                spec.position.replace("transformer_xl", "t-xl"),
                act,
                str(spec.n_layers),
                str(spec.n_heads),
            )
        )
    return found


def _comparison(here: Here) -> catalog.Comparison | None:
    entry = here.model.published
    return None if entry is None else catalog.compare_published(entry, int(model.params(here.spec)))


def _status(*names: str) -> Callable[[Here], bool]:
    def holds(here: Here) -> bool:
        found = _comparison(here)
        return found is not None and found.status in names

    return holds


def _published(here: Here) -> str:
    entry = here.model.published
    if entry is None:
        return ""
    exact_ = entry.published.params
    return exact(exact_) if exact_ is not None else str(entry.published.label)


def _difference(here: Here) -> str:
    found = _comparison(here)
    return "" if found is None or found.difference is None else signed(found.difference)


VALUES: Values = {
    "sizes": sizes,
    "choices": choices,
    "base": BASE,
    "is_base": lambda here: here.model.id == BASE and not here.model.changes,
    "parts": parts,
    "params": lambda here: int(model.params(here.spec)),
    "exact": _status("exact"),
    "rounds": _status("rounds"),
    "differs": _status("differs"),
    "published": _published,
    "difference": _difference,
    "explanation": lambda here: getattr(_comparison(here), "explanation", ""),
    "explained": lambda here: bool(getattr(_comparison(here), "explanation", "")),
    "inferred": lambda here: ", ".join(here.model.entry.inferred if here.model.entry else ()),
    "head_is_free": lambda here: (
        here.spec.head_dim is not None
        and here.spec.head_dim * here.spec.n_heads != here.spec.d_model
    ),
    "q_width": lambda here: (here.spec.head_dim or 0) * here.spec.n_heads,
    "changed": changed,
    "table": lambda here: table(),
    "more_blocks": lambda here: 2 * here.spec.n_layers,
    "answer": lambda here: asked(here.spec),
    "answer_vocab": lambda here: Exercise(
        formula=closed(here.spec.replace(n_layers=2 * here.spec.n_layers), "params"),
        settings=(f"n_layers={2 * here.spec.n_layers}",),
    ),
}
