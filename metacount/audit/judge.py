"""The verdict on formulas in use, by the machinery of `check`, and what it rests on, term by term.

A formula is put beside the count that its source says it is: by numbers at every length, in letters
for all sizes of the model's structure where the numbers agree.

A formula names sizes in our words or letters, and what its source reads off a module it has built:
`stored_params`, `token_table`. A convention has the letters of `count --conventions` and others of
`textbook/amounts.tsv`: with m = min(S, w), a windowed layer has S·m pairs in Z and M, and
S·m - m²/2 of them in G, where a full one has S²/2.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache, cached_property, lru_cache

from metacount import catalog
from metacount.algebra.text import Formula as Written
from metacount.algebra.text import at, read
from metacount.audit.record import FLOPS, NO_COUNT, Formula, Term, chosen, compared
from metacount.check.judgement import EQUAL, HERE, WRONG
from metacount.errors import InputError, SpecError
from metacount.formulas import ends, masks, pieces, sublayers
from metacount.formulas import model as ours
from metacount.formulas.dim import Dim, exact_div
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload, legend
from metacount.spec.field import altered
from metacount.spec.rules import beyond_branches
from metacount.spec.stack import BESIDE
from metacount.teaching.texts import computed
from metacount.textbook.conventions import Amounts, amounts_at
from metacount.textbook.training import activation_amounts, stored_amounts

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    import sympy

    from metacount.files import Json
    from metacount.many.pool import Failed
    from metacount.resolve import Given, Model

    Line = dict[str, Any]  # a term: in words (`of`), as text, with numbers for names, its value


Case = tuple["ModelSpec", "Workload"]
LENGTHS = (2048, 8192, 32768)
NOT_ASKED = "cannot be asked"
SECONDS = 5.0  # for one difference in letters
SMALLER = 3.0  # seconds for making a counterexample small
NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
CALLS = ("min", "max", "floor", "ceil")
SPOKEN_OF = "a model of one stack with attention in every layer and no indexer"
# what no count depends on
IRRELEVANT = ("norm_eps", "rope_theta", "rope_scaling", "rope_interleaved")
# kind -> the count of another name whose recorded proofs stand behind our side
PROVEN = {"kv_cache": "kv_cache_bytes", "activations": "activation_bytes"}
PROVEN |= {"optimizer": "optimizer_bytes", **dict.fromkeys(FLOPS, "matmul_flops")}
OURS = "3·(W + C)"  # of an MFU

# ---- what the names stand for, in numbers or in letters

LETTERS = {term.letter: term.name for term in legend.TERMS}
UNSCALED = "PQETL"  # per token, where parameters are counted


class Absent(InputError):
    """A name of something that the model does not have: the formula cannot be asked about it."""


class Place(dict[str, "Dim"]):
    """A model at some sizes and a run, ints or letters in place of both: each name's value."""

    def __init__(
        self, spec: ModelSpec, batch_size: Dim, seq_len: Dim, bytes_per_value: Dim
    ) -> None:
        run = {"batch_size": batch_size, "seq_len": seq_len, "bytes_per_value": bytes_per_value}
        super().__init__(run)
        self.spec, self.batch_size, self.seq_len = spec, batch_size, seq_len
        self.tokens = batch_size * seq_len

    def __missing__(self, word: str) -> Dim:
        """Compute the value of a name in a formula."""
        name = "bytes_per_value" if word == "c" else LETTERS.get(word, word)
        self[word] = self._value(name) if name not in self else self[name]
        return self[word]

    def _value(self, name: str) -> Dim:
        if name in READ_OFF:
            return READ_OFF[name](self)
        if name not in SIZES:
            raise InputError(f"'{name}' is no size that an audited formula may name")
        value = getattr(self.spec, name)
        if value is None and name == "d_ff_shared":
            value = self.spec.d_ff_expert
        if value is None:
            raise Absent(f"the model has no {name}")
        return value

    @cached_property
    def amounts(self) -> Amounts:
        """The amounts of the conventions."""
        return amounts_at(self.spec, self.batch_size, self.seq_len)

    def per_token(self, flops: Dim) -> Dim:
        """Compute the weights of products that take so many FLOPs: 2 for each, and each token."""
        return exact_div(flops, 2 * self.tokens)


SIZES = {term.name for term in legend.MODEL_TERMS}


def _moe_layers(place: Place) -> Dim:
    return pieces.moe_layers(place.spec, place.spec.n_layers)


def _ffn_width(place: Place) -> Dim:
    """Find what a config calls intermediate_size: the FFN's width, the experts' if all are MoE."""
    spec = place.spec
    width = spec.d_ff if spec.d_ff is not None else spec.d_ff_expert
    if width is None:
        raise Absent("the model has no d_ff")
    return width


def _shared_width(place: Place) -> Dim:
    """Return the width of all shared experts of a layer together; 0 where there are none."""
    if not place.spec.n_shared_experts:
        return 0
    return place["n_shared_experts"] * place["d_ff_shared"]


def _qk_norms(place: Place) -> Dim:
    spec = place.spec
    if spec.attention == "mla":
        return 0
    sizes = (place[name] for name in ("n_heads", "n_kv_heads", "head_dim"))
    return spec.n_layers * sublayers.qk_norm_params(spec.qk_norm, *sizes)


def _vectors(place: Place, params: Dim, experts: str) -> Dim:
    """Count the parameters in no matrix or table: norms, biases, other vectors of every layer."""
    a, spec = place.amounts, place.spec
    matrices = place.per_token(a.weights - a.head if spec.tie_embeddings else a.weights)
    if spec.is_moe:
        each = (2 + spec.gated) * place["d_model"] * place["d_ff_expert"]
        matrices += _moe_layers(place) * (place[experts] - place["top_k"]) * each
    return params - matrices - a.looked_up


READ_OFF: dict[str, Callable[[Place], Dim]] = {
    "n_moe_layers": _moe_layers,
    "n_dense_ffn_layers": lambda place: place.spec.n_layers - _moe_layers(place),
    "n_windowed_layers": lambda place: pieces.attention_layers(place.spec)[0],
    "n_full_layers": lambda place: pieces.attention_layers(place.spec)[1],
    "window_or_all": lambda place: masks.attended_positions(place.seq_len, place.spec.window),
    "ffn_width": _ffn_width,
    "shared_width": _shared_width,
    "stored_params": lambda place: place.amounts.stored,
    "active_params": lambda place: place.amounts.params,
    "token_table": lambda place: place.amounts.token_table,
    "position_table": lambda place: place.amounts.positions,
    "router_params": lambda place: place.per_token(place.amounts.routers),
    "type_table": lambda place: place.spec.n_token_types * ends.table_width(place.spec),
    "norm_vectors": lambda place: 1 + place.spec.norm_bias,
    "qk_norm_params": _qk_norms,
    "vector_params": lambda place: _vectors(place, place.amounts.stored, "n_experts"),
    "active_vector_params": lambda place: _vectors(place, place.amounts.params, "top_k"),
    "matrix_params": lambda place: place.per_token(place.amounts.weights),
}


def reference(place: Place, kind: str) -> dict[str, Dim]:
    """Return the value of each letter of a convention for one kind of count."""
    spec, run = place.spec, (place.batch_size, place.seq_len)
    if kind == "kv_cache":
        width = {"bytes_per_value": place["bytes_per_value"]}
        cache = ours.kv_cache_bytes(spec, batch_size=run[0], seq_len=run[1], **width)
        return {"K": cache, "U": ours.kv_cache_bytes_per_token(spec, **width) * place.tokens}
    if kind in ("activations", "optimizer"):
        try:
            return activation_amounts(spec, *run) if kind == "activations" else stored_amounts(spec)
        except SpecError as error:
            raise Absent(str(error)) from None
    a = place.amounts
    if kind in ("params", "active_params"):
        every = (a.params, a.stored, a.looked_up, a.token_table, a.positions)
        return dict(zip(UNSCALED, every, strict=True))
    tied = a.token_table if spec.tie_embeddings else 0
    scores = place.batch_size * place["n_heads"] * place.seq_len
    windowed, full = pieces.attention_layers(spec)
    m, n = masks.attended_positions(place.seq_len, spec.window), place.seq_len
    amounts = a.letters()
    pairs, halved = amounts["A"], _half(amounts["A"])
    if spec.window is not None:
        # A is the same for every layer and pair: 2 FLOPs per pair and value, scores and values
        per_pair = exact_div(pairs, spec.n_layers * n * n)
        pairs = per_pair * (windowed * (n * m) + full * n * n)
        halved = _half(per_pair * (windowed * (2 * n * m - m * m) + full * n * n))
    return {
        **amounts,
        "M": pairs,
        "G": halved,
        "X": place.tokens * (a.looked_up - tied),
        "Y": scores * spec.n_layers * n,
        "Z": scores * (windowed * m + full * n),
    }


def _half(value: Dim) -> Dim:
    return Fraction(value, 2) if isinstance(value, int) else value / 2


class Structure(dict[str, object]):
    """A model's structure and sizes, as the conditions of the data name them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec

    def __missing__(self, name: str) -> object:
        """Return a field, with 0 for what the model does not have."""
        if name == "heads_fill_model":
            return self.spec.n_heads * (self.spec.head_dim or 0) == self.spec.d_model
        try:
            value = getattr(self.spec, name)
        except AttributeError:
            raise SpecError("condition", "names no field of a model", name, "see spec/") from None
        return 0 if value is None else value


# ---- a formula at a model, in numbers


@cache
def written(text: str) -> Written:
    """Parse a text of the data; the same text is parsed once."""
    return read(text)


def holds(condition: str, spec: ModelSpec) -> bool:
    """Tell whether a condition of the data is true of a model.

    >>> from metacount.catalog import entry
    >>> holds("kind == 'decoder' and not is_moe", entry("mixtral-8x7b").spec())
    False
    """
    # of a size that is a letter the answer is SymPy's true, which equals True and is another object
    return condition == "True" or computed(condition, Structure(spec)) in (True,)


def outside(spec: ModelSpec) -> str:
    """Say why no formula of the audit speaks of such a model; empty where they do.

    >>> from metacount.catalog import entry
    >>> outside(entry("t5-small").spec())
    'an encoder-decoder has tokens of two kinds, and an audited formula one'
    >>> outside(entry("llama-7b").spec())
    ''
    """
    if spec.has_encoder:
        return "an encoder-decoder has tokens of two kinds, and an audited formula one"
    if BESIDE in spec.ffn_pattern:
        return "an audited formula knows no experts beside a feed-forward"
    if not spec.last_stack.uniform:
        return "an audited formula is of attention and a feed-forward in every layer"
    if spec.index_top_k is not None or spec.index_block_len is not None:
        return "an audited formula knows no indexer"
    if spec.n_zero_experts:
        return "an audited formula knows no zero experts"
    more = beyond_branches(spec)
    return f"an audited formula knows no {more}" if more else ""


def check_inside(spec: ModelSpec, id: str) -> None:
    """Raise `InputError` for a model that no formula of the audit speaks of."""
    why = outside(spec)
    if why:
        raise InputError(f"{id}: {why}; choose {SPOKEN_OF}")


def there(terms: tuple[Term, ...], spec: ModelSpec) -> tuple[Term, ...]:
    """Return the terms that a model of this structure has."""
    return tuple(term for term in terms if holds(term.where, spec))


@lru_cache(maxsize=1024)
def place_of(case: Case) -> Place:
    """Return a model and a run as names with ints behind them; the same for every formula."""
    spec, run = case
    return Place(spec, run.batch_size, run.seq_len, DTYPE_BYTES[run.dtype])


def value_of(text: str, names: Any) -> Fraction:
    """Compute the exact value of a text of the data."""
    return Fraction(at(written(text).tree, names))


def values(terms: tuple[Term, ...], place: Place) -> tuple[Fraction, ...]:
    """Compute the value of each term; `Absent` where one asks for what the model does not have."""
    return tuple(value_of(term.text, place) for term in there(terms, place.spec))


def both(formula: Formula, case: Case) -> tuple[Fraction, Fraction]:
    """Compute what the formula gives, and what its convention gives by our counts."""
    place = place_of(case)
    theirs = sum(values(formula.terms, place), Fraction(0))
    return theirs, value_of(str(formula.convention), reference(place, formula.kind))


# ---- the verdict at a model


@frozen
class Found:
    """What one formula gives at one model, at the length where it is furthest off.

    `verdict` is `equal` for all sizes of the model's structure, `equal_here` at its sizes, under
    `condition` where one is known, `wrong`, or that it cannot be asked: `condition` then says what
    the model does not have. `accounted` says that the recorded misses are the whole difference at
    every length.
    """

    formula: str
    model: str
    spec: ModelSpec
    in_scope: bool
    verdict: str
    seq_len: int
    theirs: Fraction = Fraction(0)
    ours: Fraction = Fraction(0)
    accounted: bool = False
    condition: str = ""

    @property
    def off(self) -> Fraction:
        """Theirs less ours, as a share of ours."""
        return (self.theirs - self.ours) / self.ours if self.ours else Fraction(0)

    def to_dict(self) -> Json:
        """Convert to plain data, with exact fractions."""
        names = ("model", "in_scope", "verdict", "seq_len", "theirs", "ours", "off", "condition")
        return {name: getattr(self, name) for name in (*names, "accounted")}


def lengths_of(spec: ModelSpec, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Keep the lengths that a model has positions for; all of its positions where each is longer.

    >>> from metacount.catalog import entry
    >>> lengths_of(entry("gpt2").spec(), LENGTHS)
    (1024,)
    """
    longest = spec.longest
    if longest is None:
        return lengths
    return tuple(n for n in lengths if n <= longest) or (longest,)


def judged(
    formula: Formula,
    spec: ModelSpec,
    model: str,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    outside: bool = True,
) -> Found:
    """Judge `formula` at a model: numbers at every length first, letters where they agree.

    Without `outside`, letters are not asked about a model outside the formula's scope.
    """
    in_scope = holds(formula.scope, spec)
    at_lengths = lengths_of(spec, lengths)

    def result(verdict: str, seq_len: int, **more: Any) -> Found:
        known: dict[str, Any] = {"formula": formula.id, "model": model, "spec": spec}
        return Found(**known, in_scope=in_scope, verdict=verdict, seq_len=seq_len, **more)

    if not formula.judged:
        return result(NOT_ASKED, at_lengths[0], condition=NO_COUNT)
    rows, accounted = [], True
    for n in at_lengths:
        case = spec, Workload(batch_size=1, seq_len=n)
        try:
            theirs, count = both(formula, case)
            missed = sum(values(formula.misses, place_of(case)), Fraction(0))
        except (Absent, ZeroDivisionError) as error:
            return result(NOT_ASKED, n, condition=str(error))
        accounted = accounted and theirs - count == missed
        rows.append(result(WRONG, n, theirs=theirs, ours=count))
    worst = max(reversed(rows), key=lambda row: abs(row.off))
    verdict, condition = WRONG, ""
    if worst.theirs == worst.ours:
        verdict = HERE
        if in_scope or outside:
            verdict, condition = in_letters(formula, spec)
    return altered(worst, accounted=accounted, verdict=verdict, condition=condition)


# ---- in letters

# theirs less ours of a formula for a structure, and a structure with letters for its sizes
_DIFFERENCES: dict[tuple[Formula, object], sympy.Expr | int] = {}
_PLACES: dict[object, Place] = {}


def in_letters(formula: Formula, spec: ModelSpec) -> tuple[str, str]:
    """Return `equal` if their count is ours for all sizes, else `equal_here` and the condition."""
    from metacount.algebra.exact import is_zero
    from metacount.algebra.limits import TooLong, limited
    from metacount.check.comparison import condition, multiple
    from metacount.check.names import numbers_of
    from metacount.check.sizes import free_sizes

    # of one structure, whatever its sizes, differences in letters are the same
    sizes = free_sizes(spec)
    structure = tuple(
        (name, "a size" if name in sizes else repr(value))
        for name, value in spec.to_dict().items()
        if name not in IRRELEVANT
    )
    key = formula, structure
    try:
        with limited(SECONDS, computing=True):
            if key not in _DIFFERENCES:
                if structure not in _PLACES:
                    _PLACES[structure] = place_in_letters(spec, sizes)
                difference = difference_in_letters(formula, _PLACES[structure])
                _DIFFERENCES[key] = 0 if is_zero(difference) else difference
            if (difference := _DIFFERENCES[key]) == 0:
                return EQUAL, ""
            numbers = numbers_of(spec, Workload(seq_len=LENGTHS[0]))
            return HERE, multiple(difference, numbers) or condition(difference, numbers) or ""
    except TooLong:
        return HERE, f"not decided for all sizes within {SECONDS:g} s"


def difference_in_letters(formula: Formula, place: Place) -> sympy.Expr:
    """Subtract our count from theirs with a letter for every size of the model and of the run."""
    from sympy import sympify

    from metacount.algebra.exact import in_letters as multiplied_out
    from metacount.algebra.exact import plain

    def expression(text: str, names: dict[str, Dim]) -> sympy.Expr:
        form = written(text)
        sizes = {name: sympify(names[name]) for name in form.names}
        return multiplied_out(form.tree, sizes)[0]

    theirs = sum(expression(term.text, place) for term in there(formula.terms, place.spec))
    return plain(theirs - expression(str(formula.convention), reference(place, formula.kind)))


def place_in_letters(spec: ModelSpec, sizes: Iterable[str]) -> Place:
    """Put a letter for each size that is no part of the model's structure."""
    from metacount.check.names import BYTES_LETTER, LETTERS

    letters = {name: LETTERS[name] for name in sizes}
    run = LETTERS["batch_size"], LETTERS["seq_len"], BYTES_LETTER
    return Place(spec.substituted(**letters), *run)


# ---- term by term


def detail(formula: Formula, model: Model, seq_len: int) -> Json:
    """Lay `formula` beside our count at one model and length, as plain data with exact fractions.

    `theirs` and `difference` are terms, `ours` the amounts of the convention, `parts` what each is
    made of by role. `smallest` has the sizes of the smallest valid model of the structure, found
    going down from this one, at which the two still differ, and what each gives there.
    """
    judgement = judged(formula, model.spec, model.id, (seq_len,))
    case = model.spec, Workload(batch_size=1, seq_len=judgement.seq_len)
    place = place_of(case)
    theirs = lines_of(formula.terms, place, full=True)
    amounts: list[Line] = []
    if formula.judged and judgement.ours:
        known = reference(place, formula.kind)
        used = dict.fromkeys(NAME.findall(str(formula.convention)))
        amounts = [_line(letter, letter, known) for letter in used]
    misses = [line for line in lines_of(formula.misses, place) if line["value"]]
    difference = sum((line["value"] for line in theirs), -judgement.ours)
    return {
        **formula.to_dict(),
        "model": model.id,
        "changes": model.changes,
        "found": judgement.to_dict(),
        "theirs": theirs,
        "ours": amounts,
        "parts": [*_parts(formula, place, [line["of"] for line in amounts])],
        "difference": misses,
        "unaccounted": difference - sum(line["value"] for line in misses),
        "smallest": _smallest(formula, case) if difference and amounts else None,
        "witness": rests_of(formula, judgement, model),
        "compared": compared().get(formula.id),
    }


def lines_of(terms: tuple[Term, ...], place: Place, *, full: bool = False) -> list[Line]:
    """Return the terms that a model has, each with its value.

    What asks for something that the model does not have is left out, or, with `full`, all is.
    """
    lines = []
    for term in there(terms, place.spec):
        try:
            lines.append(_line(term.of, term.text, place))
        except (Absent, ZeroDivisionError):
            if full:
                return []
    return lines


def _line(of: str, text: str, names: dict[str, Dim]) -> Line:
    numbers = with_numbers(text, names)
    return {"of": of, "text": text, "numbers": numbers, "value": value_of(text, names)}


def _parts(formula: Formula, place: Place, letters: list[str]) -> Iterator[Line]:
    """Yield what an amount is made of, by role: products with weights, and parameters."""
    spec, run = place.spec, {"batch_size": place.batch_size, "seq_len": place.seq_len}
    # a convention of FLOPs takes parameters once for every token
    tokens = place.batch_size * place.seq_len if formula.kind in FLOPS else 1
    for letter in ("W", "P", "Q"):
        if letter not in letters:
            continue
        if letter == "W":
            roles = {**ours.matmul_flops_by_role(spec, **run)}
            roles["attention"] -= place.amounts.pairs
        else:
            by_role = ours.active_params_by_role if letter == "P" else ours.params_by_role
            roles = {role: tokens * value for role, value in by_role(spec).items()}
        for role, value in roles.items():
            if value:
                yield {"of": f"{letter}, {role}", "value": Fraction(value)}


def with_numbers(text: str, names: dict[str, Dim]) -> str:
    """Put a number for every name into a text of the data.

    >>> with_numbers("6*d_model*min(a, 2)", {"d_model": 64, "a": 3})
    '6*64*min(3, 2)'
    """
    return NAME.sub(lambda m: m[0] if m[0] in CALLS else str(names[m[0]]), text)


def _smallest(formula: Formula, case: Case) -> Json | None:
    from metacount.algebra.limits import passed
    from metacount.check.sizes import free_sizes, shrunk

    late = passed(SMALLER)
    scope = holds(formula.scope, case[0])

    def differs(other: Case) -> bool:
        if late() or holds(formula.scope, other[0]) is not scope or other[1].dtype != case[1].dtype:
            return False
        try:
            theirs, count = both(formula, other)
        except (Absent, ValueError, ZeroDivisionError):
            return False
        return theirs != count

    if not differs(case):
        return None
    spec, run = shrunk(case, differs)
    sizes = {name: int(getattr(spec, name)) for name in free_sizes(spec)}
    run_sizes = {"batch_size": run.batch_size, "seq_len": run.seq_len}
    theirs, count = both(formula, (spec, run))
    return {"sizes": {**sizes, **run_sizes}, "theirs": theirs, "ours": count}


# ---- every formula at every model


@frozen
class Audited:
    """One formula, and what it gives at every model; no `found` where there is nothing to judge by.

    `compared` says with which version of the real function the restatement was compared, and at how
    many random sizes; `witness` what our side rests on at the model where it is furthest off.
    """

    formula: Formula
    found: tuple[Found, ...]
    compared: Json | None
    witness: str = ""

    def of(self, verdict: str, *, in_scope: bool = True) -> tuple[Found, ...]:
        """Return the findings with a verdict, inside the scope the source claims, or outside."""
        return tuple(f for f in self.found if f.verdict == verdict and f.in_scope is in_scope)

    def asked(self, *, in_scope: bool = True) -> int:
        """Count the models that the formula was judged at."""
        return sum(f.in_scope is in_scope and f.verdict != NOT_ASKED for f in self.found)

    def worst(self, *, in_scope: bool = True) -> Found | None:
        """Find the model where the formula is furthest off; None where it is off nowhere."""
        off = self.of(WRONG, in_scope=in_scope)
        return max(off, key=lambda f: abs(f.off)) if off else None

    @property
    def conditions(self) -> tuple[str, ...]:
        """Under what it equals its convention, where it does not for all sizes."""
        return tuple(dict.fromkeys(f.condition for f in self.of(HERE)))

    @property
    def verdict(self) -> str:
        """The verdict on all models of its scope together."""
        if not self.found:
            return "not judged"
        if self.of(WRONG):
            return "off"
        return "equal under a condition" if self.of(HERE) else "equal"


class Audits(tuple["Audited", ...]):
    """Formulas that were judged."""

    __slots__ = ()


def audit(
    names: str | Iterable[str] = (),
    *,
    model: Given | None = None,
    lengths: Iterable[int] = LENGTHS,
    jobs: int = 1,
) -> Audits:
    """Judge the formulas of these names, all where none is given, at `model` or the whole catalog.

    >>> (answer,) = audit("slime-forward", model="qwen3-4b")
    >>> answer.verdict, answer.found[0].accounted
    ('off', True)
    """
    wanted = chosen((names,) if isinstance(names, str) else tuple(names))
    by_number = dict(audited(wanted, tuple(lengths), jobs, model))
    return Audits(by_number[i] for i in range(len(wanted)))


def _inside(model: Given) -> Model:
    from metacount.resolve import model_of

    resolved = model_of(model)
    check_inside(resolved.spec, resolved.id)
    return resolved


def audited(
    wanted: tuple[Formula, ...], lengths: tuple[int, ...], jobs: int, model: Given | None = None
) -> Iterator[tuple[int, Audited]]:
    """Judge formulas at a model, or the whole catalog; yields each with its number when finished.

    What stands behind our side is said of the model where the formula is furthest off.
    """
    from metacount.resolve import find_model

    work = [(formula, lengths) for formula in wanted]
    done: Iterable[tuple[int, tuple[Found, ...] | Failed]]
    own = None if model is None else _inside(model)
    if own is not None:
        rows = ((judged(f, own.spec, own.id, lengths),) if f.judged else () for f in wanted)
        done = enumerate(rows)
    elif jobs > 1 and len(work) > 1:
        from metacount.many.pool import answers

        done = answers(at_every_model, work, processes=jobs)
    else:
        done = enumerate(map(at_every_model, work))
    for i, answer in done:
        if not isinstance(answer, tuple):
            raise RuntimeError(f"{wanted[i].id} was not judged: {answer.reason}")
        off = [f for f in answer if f.verdict == WRONG and (f.in_scope or own is not None)]
        witness = ""
        if off:
            worst = max(off, key=lambda f: abs(f.off))
            witness = rests_of(wanted[i], worst, own or find_model(worst.model))
        real = compared().get(wanted[i].id)
        yield i, Audited(formula=wanted[i], found=answer, compared=real, witness=witness)


def at_every_model(job: tuple[Formula, tuple[int, ...]]) -> tuple[Found, ...]:
    """Judge one formula at every model of the catalog that the audit speaks of."""
    formula, lengths = job
    if not formula.judged:
        return ()
    return tuple(judged(formula, spec, id, lengths, outside=False) for id, spec in models())


@cache
def models() -> tuple[tuple[str, ModelSpec], ...]:
    """List the models of the catalog that a formula is judged at: sizes known, inside the audit."""
    built = ((entry.id, entry.spec()) for entry in catalog.entries() if entry.sizes is not None)
    return tuple((id, spec) for id, spec in built if not outside(spec))


def misses_at(formula: Formula, result: Found) -> list[Line]:
    """Return the recorded misses that make the difference at a model, the largest first."""
    place = place_of((result.spec, Workload(batch_size=1, seq_len=result.seq_len)))
    lines = [line for line in lines_of(formula.misses, place) if line["value"]]
    return sorted(lines, key=lambda line: -abs(line["value"]))


def rests_of(formula: Formula, result: Found, model: Model) -> str:
    """Say what our count of this kind rests on at `model`: what was proven against which code."""
    from metacount.check.verdict import rests_on

    if not formula.judged:
        return ""
    return rests_on(model, Workload(seq_len=result.seq_len), PROVEN.get(formula.kind, formula.kind))


# ---- one run's MFU under the training formula of every framework


@frozen
class Utilization:
    """One formula's FLOPs per token, and the MFU of a run by it, at each length.

    `formula` is None for metacount's own count. None stands where the formula cannot be asked.
    """

    formula: Formula | None
    in_scope: bool
    per_token: tuple[Fraction | None, ...]
    mfu: tuple[Fraction | None, ...]


def mfu(
    model: Given, lengths: Iterable[int], *, tokens_per_second: Fraction, peak_tflops: Fraction
) -> tuple[Utilization, ...]:
    """Compute the MFU of the same run under every training formula, at each length; ours first.

    >>> rows = mfu("llama3-8b", [8192], tokens_per_second=Fraction(8000), peak_tflops=Fraction(989))
    >>> round(float(rows[0].mfu[0]), 3)
    0.416
    """
    if tokens_per_second <= 0 or peak_tflops <= 0:
        raise InputError("tokens per second and peak must be more than 0")
    spec = _inside(model).spec
    share = tokens_per_second / (peak_tflops * 10**12)
    at_lengths = tuple(lengths)

    def per_token(formula: Formula | None, seq_len: int) -> Fraction | None:
        place = place_of((spec, Workload(batch_size=1, seq_len=seq_len)))
        if formula is None:
            return value_of(OURS, place.amounts.letters()) / seq_len
        try:
            return sum(values(formula.terms, place), Fraction(0)) / seq_len
        except (Absent, ZeroDivisionError):
            return None

    def row(formula: Formula | None) -> Utilization:
        rows = tuple(per_token(formula, n) for n in at_lengths)
        return Utilization(
            formula=formula,
            in_scope=formula is None or holds(formula.scope, spec),
            per_token=rows,
            mfu=tuple(None if n is None else n * share for n in rows),
        )

    training = (f for f in chosen(()) if f.kind == "training" and f.judged)
    return (row(None), *map(row, training))
