"""The formulas of one model with letters in place of its sizes, and what they come to.

The same functions that count with ints are called with symbols here; nothing is derived twice.
SymPy takes longer to import than a count takes: only `formula` loads this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.figures import COUNTED
from metacount.formulas import model, pieces
from metacount.formulas.dim import Dim, exact_div, is_zero
from metacount.formulas.mtp import PREDICTION
from metacount.formulas.sublayers import attention_by_selection
from metacount.frozen import frozen
from metacount.spec import ModelSpec, Workload, legend
from metacount.spec.legend import Term
from metacount.spec.stack import (
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_FFN,
    WITH_STATE,
)
from metacount.textbook.count import QUANTITIES, run_sizes
from metacount.textbook.rows import in_symbols
from metacount.textbook.training import TRAINING, holds_dtype

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import sympy

    Count: TypeAlias = Callable[[ModelSpec, dict[str, Dim]], dict[str, Dim]]

# Letters for sizes that no field of a spec or workload holds.
LAYERS = tuple(map(legend.term_of, (
    "n_windowed_layers", "n_caching_windowed_layers", "n_second_ffn_layers", "n_global_layers",
    "n_attention_layers", "n_recurrent_layers", "n_indexed_layers", "n_mixer_layers",
    "n_ffn_layers", "n_dense_ffn_layers", "n_moe_layers",
)))  # fmt: skip
BYTES = legend.term_of("bytes_per_value")
# Longer sums, expanded, are hardly ever a product; to find that out takes SymPy up to 10 seconds.
FACTORED = 12  # terms


@frozen
class ClosedForm:
    """One quantity of one model: its parts in letters, the numbers for the letters, the values.

    `values` were counted with ints, apart from the letters; that both agree is checked.
    """

    quantity: str
    parts: dict[str, sympy.Expr]
    values: dict[str, int]
    terms: tuple[Term, ...]
    numbers: dict[str, int]

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(self.values.values())


def _no_embed(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    by_role = model.active_params_by_role(spec)
    left_out = sum(by_role.values()) - model.active_params_no_embed(spec)
    return {**by_role, "embedding": by_role["embedding"] - left_out}


def _least_active(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    by_role = model.active_params_by_role(spec)
    given_back = sum(by_role.values()) - model.least_active_params(spec)
    return {**by_role, "moe": by_role["moe"] - given_back}


def _param_bytes(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    by_role = model.params_by_role(spec)
    return {role: n * run["bytes_per_value"] for role, n in by_role.items()}


def _macs(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return {role: exact_div(n, 2) for role, n in QUANTITIES["matmul_flops"](spec, run).items()}


def _by_selection(name: str) -> Count:
    def counted(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
        sizes = {"batch_size": run["batch_size"], "seq_len": run["seq_len"]}
        return {"attention": attention_by_selection(spec, **sizes).get(name, 0)}

    return counted


# What `count` prints beside these, most of it a sum or a part of them.
BESIDE: dict[str, Count] = {
    "active_params_no_embed": _no_embed,
    "least_active_params": _least_active,
    "param_bytes": _param_bytes,
    "macs": _macs,
    "kv_cache_bytes_per_token": lambda spec, run: {
        "self-attention": model.kv_cache_bytes_per_token(
            spec, bytes_per_value=run["bytes_per_value"]
        )
    },
    "cross_kv_cache_bytes": lambda spec, run: {
        "cross-attention": QUANTITIES["kv_cache_bytes"](spec, run)["cross-attention"]
    },
    "dense_attention_flops": _by_selection("dense_attention_flops"),
    "selected_attention_flops": _by_selection("selected_attention_flops"),
    "index_flops": _by_selection("index_flops"),
}
# whose mistakes `check` knows by name
EXPLAINED = {*QUANTITIES} | {name for name in PREDICTION if name.removeprefix("mtp_") in QUANTITIES}
# Of one forward, in the order in which `count` prints them; then those of training.
_KNOWN = {**QUANTITIES, **PREDICTION, **BESIDE}
FORWARD: dict[str, Count] = {name: _KNOWN[name] for name in COUNTED if name in _KNOWN}
COUNTS = {**FORWARD, **TRAINING}


def closed_form(spec: ModelSpec, workload: Workload, quantity: str) -> ClosedForm:
    """Write one quantity in letters and in numbers.

    >>> from metacount.catalog import entry
    >>> form = closed_form(entry("llama-7b").spec(), Workload(), "params")
    >>> form.parts["ffn"], form.values["ffn"], form.total
    (3*N*d*m, 4328521728, 6738415616)
    """
    import sympy

    count = COUNTS[quantity]
    run = run_sizes(spec, workload)
    values = {part: value for part, value in count(spec, run).items() if value}
    symbolic, numbers = in_symbols(spec)
    letters = {**legend.sympy_symbols(legend.RUN), BYTES.name: _symbol(BYTES)}
    letters = {name: letters[name] for name, size in run.items() if size}
    if holds_dtype(quantity):
        letters.pop(BYTES.name)
    in_letters = count(symbolic, {**run, **letters})
    numbers |= {letter.name: run[name] for name, letter in letters.items()}
    named = named_layers(spec, symbolic.n_layers)
    parts = {
        part: readable(with_layers_named(sympy.sympify(in_letters[part]), named)) for part in values
    }
    numbers |= {letter.name: layers_of(spec)[letter.name] for letter in named.values()}
    used = {letter.name for part in parts.values() for letter in part.free_symbols}
    form = ClosedForm(
        quantity=quantity,
        parts=parts,
        values=values,
        terms=tuple(t for t in (*legend.TERMS, *LAYERS, BYTES) if t.letter in used),
        numbers={letter: size for letter, size in numbers.items() if letter in used},
    )
    _check(form)
    return form


def _symbol(term: Term) -> sympy.Symbol:
    import sympy

    return sympy.Symbol(term.letter, integer=True, positive=True)


def layers_of(spec: ModelSpec) -> dict[str, Dim]:
    """Count the blocks of each kind by letter, where patterns say which they are."""
    last, mixer = spec.last_stack, spec.last_stack.attention
    index = getattr(mixer, "indexer", None)
    kinds = {
        "N_w": (last.seen, "L"),
        "N_a": (last.mixer_pattern, WITH_ATTENTION),
        "N_g": (last.seen if "L" in last.seen and "R" in last.seen else "", "G"),
        "N_r": (last.mixer_pattern, WITH_STATE),
        "N_i": ("" if index is None else index.pattern, "I"),
        "N_x": (last.mixer_pattern, WITH_ATTENTION + WITH_STATE),
        "N_f": (last.ffn_pattern, WITH_FFN),
        "N_m": (last.ffn_pattern, WITH_EXPERTS),
        "N_d": (last.ffn_pattern if last.names_experts else "", WITH_DENSE),
    }
    counts = {
        letter: pieces.lettered_layers(last.n_layers, pattern, letters)
        for letter, (pattern, letters) in kinds.items()
        if set(pattern) & set(letters) and set(pattern) - set(letters)
    }
    if "N_w" in counts:  # as the formulas write it
        counts["N_w"] = pieces.windowed_layers(last.n_layers, last.seen)
        if not is_zero(pieces.borrowing_layers(spec)):
            counts["N_wc"] = pieces.caching_layers(spec)[0]
    part = last.feed_forward
    if part is not None and set(part.second_pattern) == {"M", "W"}:
        counts["N_m2"] = pieces.lettered_layers(last.n_layers, part.second_pattern, "W")
    return counts


def named_layers(spec: ModelSpec, n_layers: Dim) -> dict[sympy.Expr, sympy.Symbol]:
    """Choose a letter for each number of blocks whose form in N is a sum of floors.

    Of two kinds that are the same blocks, the first has the letter.
    """
    by_letter = {term.letter: _symbol(term) for term in LAYERS}
    letters: dict[sympy.Expr, sympy.Symbol] = {}
    symbols = {"n_layers": n_layers}
    if spec.n_kv_shared_layers:
        symbols |= legend.sympy_symbols(["n_kv_shared_layers"])
    for letter, form in layers_of(spec.substituted(**symbols)).items():
        letters.setdefault(form, by_letter[letter])
    return letters


def with_layers_named(expr: sympy.Expr, named: dict[sympy.Expr, sympy.Symbol]) -> sympy.Expr:
    """Put letters for numbers of blocks, also where a factor was multiplied into their floors."""
    import sympy

    expr = expr.subs(named)
    known: dict[sympy.Expr, sympy.Expr] = {}
    for group, letter in named.items():
        form = group.subs(known)  # N - N_a, where N_a has its letter
        for floor in form.atoms(sympy.floor):
            # form = rest ± floor, so floor = ±(letter - rest)
            sign = form.coeff(floor)
            known[floor] = sign * (letter - (form - sign * floor))
            other = expr.subs(floor, known[floor])
            if sympy.count_ops(other) < sympy.count_ops(expr):
                expr = other
            break
        else:
            multiples = {
                add: content * letter
                for add in expr.atoms(sympy.Add)
                for content, product in [add.as_content_primitive()]
                if product == form
            }
            expr = expr.xreplace(multiples)
    return expr


def readable(expr: sympy.Expr) -> sympy.Expr:
    """Choose the shortest of a few equal forms: as the formulas wrote it, or factored."""
    import sympy

    forms = [expr, sympy.factor_terms(expr)]
    if len(sympy.Add.make_args(sympy.expand(expr))) <= FACTORED:
        forms.append(sympy.factor(expr))
    return min(forms, key=lambda form: (sympy.count_ops(form), len(str(form))))


def _check(form: ClosedForm) -> None:
    for part, expr in form.parts.items():
        value = expr.subs({letter: form.numbers[letter.name] for letter in expr.free_symbols})
        if value != form.values[part]:
            raise AssertionError(
                f"{form.quantity}, {part}: letters give {value}, ints give {form.values[part]}"
            )
