"""The formulas of one model with letters in place of its sizes, and what they come to.

The same functions that count with ints are called with symbols here; nothing is derived twice.
SymPy takes longer to import than a count takes: only `formula` loads this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metacount.figures import COUNTED
from metacount.formulas import model, mtp, pieces
from metacount.formulas.dim import Dim, exact_div, is_zero
from metacount.formulas.sublayers import attention_by_selection
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload, legend
from metacount.spec.attention import Attention
from metacount.spec.legend import Term
from metacount.spec.stack import (
    WITH_ATTENTION,
    WITH_DENSE,
    WITH_EXPERTS,
    WITH_FFN,
    WITH_STATE,
)
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


def _params(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    return model.params_by_role(spec)


def _active_params(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    return model.active_params_by_role(spec)


def _matmul_flops(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return model.matmul_flops_by_role(
        spec,
        batch_size=run["batch_size"],
        seq_len=run["seq_len"],
        source_len=run["source_len"],
    )


def _causal_matmul_flops(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return model.causal_matmul_flops_by_role(
        spec,
        batch_size=run["batch_size"],
        seq_len=run["seq_len"],
        source_len=run["source_len"],
        prefix_len=run["prefix_len"],
    )


def _decode_matmul_flops(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return model.decode_matmul_flops_by_role(
        spec, batch_size=run["batch_size"], kv_len=run["kv_len"], source_len=run["source_len"]
    )


def _kv_cache_bytes(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    both = model.kv_cache_bytes(
        spec,
        batch_size=run["batch_size"],
        seq_len=run["seq_len"],
        bytes_per_value=run["bytes_per_value"],
        source_len=run["source_len"],
    )
    cross = model.cross_kv_cache_bytes(
        spec,
        batch_size=run["batch_size"],
        source_len=run["source_len"],
        bytes_per_value=run["bytes_per_value"],
    )
    return {"self-attention": both - cross, "cross-attention": cross}


def _state_bytes(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return model.state_bytes_by_part(
        spec, batch_size=run["batch_size"], bytes_per_value=run["bytes_per_value"]
    )


# Which `verify` compares, and proofs are recorded of.
QUANTITIES: dict[str, Count] = {
    "params": _params,
    "active_params": _active_params,
    "matmul_flops": _matmul_flops,
    "causal_matmul_flops": _causal_matmul_flops,
    "decode_matmul_flops": _decode_matmul_flops,
    "kv_cache_bytes": _kv_cache_bytes,
    "state_bytes": _state_bytes,
}
# What multi-token-prediction modules add to these; 0 in a model without them.
PREDICTION: dict[str, Count] = {
    "mtp_params": lambda spec, _: mtp.params_by_role(spec),
    "mtp_active_params": lambda spec, _: mtp.active_params_by_role(spec),
    "mtp_matmul_flops": lambda spec, run: mtp.matmul_flops_by_role(
        spec, batch_size=run["batch_size"], seq_len=run["seq_len"]
    ),
    "mtp_causal_matmul_flops": lambda spec, run: mtp.causal_matmul_flops_by_role(
        spec, batch_size=run["batch_size"], seq_len=run["seq_len"]
    ),
    "mtp_decode_matmul_flops": lambda spec, run: mtp.decode_matmul_flops_by_role(
        spec, batch_size=run["batch_size"], kv_len=run["kv_len"]
    ),
    "mtp_kv_cache_bytes": lambda spec, run: mtp.kv_cache_bytes_by_part(
        spec,
        batch_size=run["batch_size"],
        seq_len=run["seq_len"],
        bytes_per_value=run["bytes_per_value"],
    ),
}


def _no_embed(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    found = model.active_params_by_role(spec)
    left_out = sum(found.values()) - model.active_params_no_embed(spec)
    return {**found, "embedding": found["embedding"] - left_out}


def _least_active(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    found = model.active_params_by_role(spec)
    given_back = sum(found.values()) - model.least_active_params(spec)
    return {**found, "moe": found["moe"] - given_back}


def _param_bytes(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    found = model.params_by_role(spec)
    return {role: n * run["bytes_per_value"] for role, n in found.items()}


def _macs(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return {role: exact_div(n, 2) for role, n in _matmul_flops(spec, run).items()}


def _by_selection(name: str) -> Count:
    def counted(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
        sizes = {"batch_size": run["batch_size"], "seq_len": run["seq_len"]}
        return {"attention": attention_by_selection(spec, **sizes).get(name, 0)}

    return counted


def _shared(spec: ModelSpec, copies: Dim) -> dict[str, Dim]:
    """Count the embedding and the head that prediction modules share, or have copies of."""
    if spec.prediction is None:
        return {"embedding": 0, "head": 0}
    head = copies * model.params_by_role(spec)["head"]
    return {"embedding": copies * mtp.shared_params(spec) - head, "head": head}


def _mtp_with_copies(spec: ModelSpec, _: dict[str, Dim]) -> dict[str, Dim]:
    n = 0 if spec.prediction is None else spec.prediction.n_modules
    return {**mtp.params_by_role(spec), **_shared(spec, n)}


def _mtp_no_head(spec: ModelSpec, run: dict[str, Dim]) -> dict[str, Dim]:
    return {**PREDICTION["mtp_matmul_flops"](spec, run), "head": 0}


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
        "cross-attention": _kv_cache_bytes(spec, run)["cross-attention"]
    },
    "dense_attention_flops": _by_selection("dense_attention_flops"),
    "selected_attention_flops": _by_selection("selected_attention_flops"),
    "index_flops": _by_selection("index_flops"),
    "mtp_params_with_copies": _mtp_with_copies,
    "mtp_active_params_with_shared": lambda spec, _: {
        **mtp.active_params_by_role(spec),
        **_shared(spec, 1),
    },
    "mtp_buffers": lambda spec, _: {"moe": sum(mtp.buffers(spec).values())},
    "mtp_matmul_flops_no_head": _mtp_no_head,
}
EXPLAINED = {**QUANTITIES, **PREDICTION}  # whose mistakes `check` knows by name
# Of one forward, in the order in which `count` prints them; then those of training.
FORWARD = dict(sorted({**EXPLAINED, **BESIDE}.items(), key=lambda item: [*COUNTED].index(item[0])))
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
    # sizes that are 0 or None are structure: the model has none of these parts
    fields = {t.name: getattr(spec, t.name) for t in legend.MODEL_TERMS}
    sizes = {name: size for name, size in fields.items() if size}
    if spec.moe_every == 1:
        sizes.pop("moe_every")
    run_present = {name: size for name, size in run.items() if size}
    if holds_dtype(quantity):
        run_present.pop("bytes_per_value")
    letters = {**legend.sympy_symbols(t.name for t in legend.TERMS), BYTES.name: _symbol(BYTES)}
    in_letters = count(
        spec.substituted(**{name: letters[name] for name in sizes}),
        {**run, **{name: letters[name] for name in run_present}},
    )
    numbers = {letters[name].name: size for name, size in {**sizes, **run_present}.items()}
    named = named_layers(spec, letters["n_layers"])
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


def run_sizes(spec: ModelSpec, workload: Workload) -> dict[str, int]:
    """Return the sizes of a workload under the names that the counts of `QUANTITIES` take."""
    return {
        "batch_size": workload.batch_size,
        "seq_len": workload.seq_len,
        "kv_len": workload.seq_len,
        "source_len": workload.encoder_len if spec.has_encoder else 0,
        "prefix_len": workload.prefix_len,
        "bytes_per_value": DTYPE_BYTES[workload.dtype],
    }


def _symbol(term: Term) -> sympy.Symbol:
    import sympy

    return sympy.Symbol(term.letter, integer=True, positive=True)


def layers_of(spec: ModelSpec) -> dict[str, Dim]:
    """Count the blocks of each kind by letter, where patterns say which they are."""
    last, mixer = spec.last_stack, spec.last_stack.attention
    index = mixer.indexer if isinstance(mixer, Attention) else None
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
    found = {
        letter: pieces.lettered_layers(last.n_layers, pattern, letters)
        for letter, (pattern, letters) in kinds.items()
        if set(pattern) & set(letters) and set(pattern) - set(letters)
    }
    if "N_w" in found:  # as the formulas write it
        found["N_w"] = pieces.windowed_layers(last.n_layers, last.seen)
        if not is_zero(pieces.borrowing_layers(spec)):
            found["N_wc"] = pieces.caching_layers(spec)[0]
    part = last.feed_forward
    if part is not None and set(part.second_pattern) == {"M", "W"}:
        found["N_m2"] = pieces.lettered_layers(last.n_layers, part.second_pattern, "W")
    return found


def named_layers(spec: ModelSpec, n_layers: Dim) -> dict[sympy.Expr, sympy.Symbol]:
    """Choose a letter for each number of blocks whose form in N is a sum of floors.

    Of two kinds that are the same blocks, the first has the letter.
    """
    by_letter = {term.letter: _symbol(term) for term in LAYERS}
    found: dict[sympy.Expr, sympy.Symbol] = {}
    symbols = {"n_layers": n_layers}
    if spec.n_kv_shared_layers:
        symbols |= legend.sympy_symbols(["n_kv_shared_layers"])
    for letter, form in layers_of(spec.substituted(**symbols)).items():
        found.setdefault(form, by_letter[letter])
    return found


def with_layers_named(expr: sympy.Expr, named: dict[sympy.Expr, sympy.Symbol]) -> sympy.Expr:
    """Put letters for numbers of blocks, also where a factor was multiplied into their floors."""
    import sympy

    expr = expr.subs(named)
    known: dict[sympy.Expr, sympy.Expr] = {}
    for whole, letter in named.items():
        form = whole.subs(known)  # N - N_a, where N_a has its letter
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
                for content, one in [add.as_content_primitive()]
                if one == form
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
