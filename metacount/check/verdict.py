"""The judge: a formula and a model in, a `Judgement` out."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import sympy

from metacount.algebra.exact import in_letters, is_zero, plain
from metacount.algebra.limits import TooLong, limited, passed
from metacount.algebra.text import read
from metacount.check.call import Answer, ask
from metacount.check.comparison import (
    RUN,
    TRIED_AS_DATA,
    Theirs,
    Tried,
    Truth,
    condition,
    count_of,
    named,
    small_cases,
    tried_at,
)
from metacount.check.explain import explain, explain_numbers
from metacount.check.given.process import answer_of
from metacount.check.judgement import (
    EQUAL,
    HERE,
    TRIED,
    UNTRIED,
    WRONG,
    Counterexample,
    Judgement,
    Term,
)
from metacount.check.names import BYTES_LETTER, NAMES, Vocabulary, numbers_of
from metacount.check.sizes import sizes_of
from metacount.errors import InputError, SpecError, nearest, printable, shown
from metacount.figures import FIGURES
from metacount.given import check_size
from metacount.resolve import Model, model_of
from metacount.spec import ModelSpec, Request, Workload
from metacount.spec.stack import BESIDE, SHARING, WITH_ATTENTION, WITH_EXPERTS, WITH_FFN
from metacount.textbook.closed_form import COUNTS
from metacount.textbook.count import count, fitted
from metacount.textbook.proven import CODE, SHOWN, proven_of, sizes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from metacount.check.sizes import Case
    from metacount.files import Json
    from metacount.resolve import Given
    from metacount.textbook.proven import Against


def rests_on(model: Model, workload: Workload, quantity: str) -> str:
    """Say which formula stands on the model's side, and what was shown of it beside which code.

    >>> from metacount.resolve import find_model
    >>> from metacount.spec import Workload
    >>> rests_on(find_model("llama-7b"), Workload(), "no such quantity")
    'our textbook formula alone: nothing is recorded of it beside code'
    """
    found = proven_of(model, count(model.spec, workload))
    sides = () if found is None else (found.code, found.ours)
    said = [_of(side, quantity, found.small) for side in sides if found is not None]
    known = [text for text in said if text]
    return "our textbook formula" + (
        ", " + "; ".join(known) if known else " alone: nothing is recorded of it beside code"
    )


# Of what is recorded of our formula less a code, by its verdict.
SENTENCES = {
    "equal": "proven equal to {code} {domain}",
    "chosen": "equal to {code} for the experts that a token chose, {domain}; that code runs {text} "
    "more FLOPs",
    "differs": "not what {code} computes: the formula less the code is {text}",
}
NOT_SAID = "not proven against {code} at these sizes: {text}"


def _of(against: Against | None, quantity: str, small: tuple[str, ...]) -> str:
    said = () if against is None else against.verdicts
    one = next((one for one in said if one.quantity == quantity), None)
    if against is None or one is None:
        return ""
    theirs = against.side == CODE
    return SENTENCES.get(one.verdict, NOT_SAID).format(
        code=f"transformers' code of {against.name}" if theirs else "our reference modules",
        domain=f"for {sizes_text(one.where, small, SHOWN)}",
        text=one.text,
    )


NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
QK_NORMS = {
    "head": "QK-norm",
    "full": "QK-norm over all heads",
    "layernorm": "QK-LayerNorm",
}
POSITIONS = {
    "learned": "a learned position table",
    "t5": "T5's relative positions",
    "transformer_xl": "Transformer-XL's relative positions",
}
MIXERS = {
    "gated_delta": "gated DeltaNet",
    "kimi_delta": "Kimi delta attention",
    "lightning": "lightning attention",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "mlstm": "mLSTM",
    "short_conv": "short convolutions",
    "rg_lru": "RG-LRU blocks",
}
LONGEST_PATTERN = 16


def structure(spec: ModelSpec) -> str:
    """Describe what of `spec` matters to a count and is no size.

    >>> from metacount.catalog import entry
    >>> structure(entry("qwen3-32b").spec())
    'decoder with multi-head or grouped attention, QK-norm, gated FFN, RMSNorm, untied head'
    """
    parts = [_recurrent(spec)]
    if set(WITH_ATTENTION) & set(spec.mixer_pattern):
        biased = [name for name in "qkvo" if getattr(spec, f"{name}_bias")]
        parts += [
            _attention(spec),
            f"biases on {', '.join(biased)}" if biased else "",
            QK_NORMS.get(spec.qk_norm, ""),
            "sinks" if spec.attention_sinks else "",
        ]
    head = "no head"
    if spec.vocab_size is None:
        head = "no embedding and no head"
    elif spec.has_head:
        head = "tied head" if spec.tie_embeddings else "untied head"
    parts += [_ffn(spec), NORMS[spec.norm], POSITIONS.get(spec.position, ""), head]
    around = {
        "AltUp": spec.n_altup_inputs,
        "LAuReL": spec.laurel_rank,
        "an embedding of each layer": spec.d_per_layer,
        "last layers that borrow keys and values": spec.n_kv_shared_layers,
        f"two widths of the FFN{_of_layers('W', spec.d_ff_pattern)}": spec.d_ff_second,
        f"{spec.window_kind} window (layers {spec.window_pattern})": spec.window,
    }
    parts += [words for words, given in around.items() if given]
    return f"{spec.kind} with {', '.join(part for part in parts if part)}"


def _recurrent(spec: ModelSpec) -> str:
    if spec.recurrent == "none":
        return ""
    name, letters = MIXERS[spec.recurrent], spec.mixer_pattern
    if set(letters) == {"P"}:
        return f"{name} beside attention in every layer"
    if SHARING in letters:
        return f"{name}, behind shared blocks{_of_layers(SHARING, letters)}"
    return name + _of_layers("R", letters)


def _of_layers(letter: str, letters: str) -> str:
    """Say which layers of a pattern have `letter`, where it is not all of them."""
    if set(letters) == {letter}:
        return ""
    shown = letters if len(letters) <= LONGEST_PATTERN else letters[:LONGEST_PATTERN] + "..."
    return f" in the layers {letter} of {shown}"


def _attention(spec: ModelSpec) -> str:
    if spec.attention == "mla":
        indexed = " that attends to the pairs an indexer selects" * (spec.index_top_k is not None)
        return ("MLA" if spec.q_lora_rank is not None else "MLA without a query latent") + indexed
    blocks = ""
    if spec.index_block_len is not None:
        of_layers = _of_layers("I", spec.index_pattern)
        blocks = f" that attends to the blocks an indexer selects{of_layers}"
    return f"multi-head or grouped attention{blocks}"  # h_kv is a size


def _ffn(spec: ModelSpec) -> str:
    if not set(WITH_FFN) & set(spec.ffn_pattern) and spec.n_shared_blocks is None:
        return "no FFN"
    kind = "gated" if spec.gated else "plain"
    bias = " with biases" if spec.ffn_bias or spec.expert_bias else ""
    if not spec.is_moe:
        where = _of_layers("F", spec.ffn_pattern) if spec.n_shared_blocks is None else ""
        on = "q, k, v and the FFN" if spec.attention_adapters else "the FFN"
        adapters = "" if spec.adapter_rank is None else f", adapters of each use on {on}"
        return f"{kind} FFN{bias}{where}{adapters}"
    beside = f"{kind} FFN and beside it " if BESIDE in spec.ffn_pattern else ""
    every = " in every moe_every-th layer" if spec.moe_every > 1 else ""
    if set(WITH_EXPERTS) & set(spec.ffn_pattern):
        every = _of_layers(BESIDE if beside else "E", spec.ffn_pattern)
    more = {
        " and shared experts": spec.n_shared_experts,
        " and zero experts": spec.n_zero_experts,
        " in a latent": spec.moe_latent_rank,
        " (with rows that nobody reads)": spec.zero_expert_rows,
        bias: True,
        " after dense layers": spec.n_dense_layers,
        every: True,
    }
    return f"{beside}{kind} experts{''.join(words for words, given in more.items() if given)}"


TIMEOUT = 10.0  # seconds for a formula, whatever it is
FOR_LETTERS, FOR_TRIALS, FOR_WORDS = 0.6, 0.2, 0.2  # shares of it; words are within letters
FOR_JUDGING = 0.5  # share of it that letters may take of a function
NO_TIME = "not accounted for: no time was left to look for the mistake"
WRONG_AT = 40  # small sizes at which a wrong formula is evaluated, to find the mistake


def vocabulary(model: Model, case: Case, quantity: str) -> Vocabulary:
    """Return the names that a formula about `model` may use."""
    config = model.source.config if model.source is not None else None
    return Vocabulary(*case, quantity, name=model.id, config=config)


RUN_SIZES = ("batch_size", "seq_len", "source_len")
UNSAID = "params"  # what a formula counts where nobody says
# What a formula that names sequences or tokens may be meant to count.
OF_A_RUN = (
    "matmul_flops",
    "causal_matmul_flops",
    "train_matmul_flops",
    "decode_matmul_flops",
    "kv_cache_bytes",
    "activation_bytes",
)


class Judge:
    """One count of one model, beside which formulas are put: in letters, else by numbers."""

    def __init__(self, model: Model, case: Case, quantity: str, timeout: float = TIMEOUT) -> None:
        self.model, self.case, self.quantity, self.timeout = model, case, quantity, timeout
        self.words = vocabulary(model, case, quantity)

    @cached_property
    def truth(self) -> Truth:
        """What the model has."""
        return Truth(*self.case, self.quantity)

    def find_quantity(self, text: str) -> str:
        """Find the quantity that a text comes nearest to, if it depends on the run; else ""."""
        theirs, _ = self._read(text)
        used = {a for expr in theirs.names.values() for a in expr.free_symbols}
        letters, value = {str(a) for a in used & RUN - {BYTES_LETTER}}, theirs.value(self.case)
        spec, run = self.case
        lengths = {name: n for name, n in sizes_of(self.case).items() if name in RUN_SIZES}
        longer = {name: 2 * n + 1 for name, n in lengths.items()}
        with suppress(InputError, SpecError):  # it divides by zero there
            if theirs.value((spec, Workload(**{**run.to_dict(), **longer}))) == value:
                return ""  # what it names of a run does not matter
        ratios: dict[str, Fraction] = {}
        for name in OF_A_RUN:
            if letters and letters <= {*FIGURES[name].run} and value > 0:
                with suppress(SpecError):  # of such a model there is none
                    if ours := count_of(*self.case, name):
                        ratios[name] = max(value / ours, ours / value)
        return min(ratios, key=lambda name: ratios[name], default="")

    def text(self, text: str, said: Iterable[str] = ()) -> Judgement:
        """Judge a text, of which something may have been said."""
        theirs, notes = self._read(text)
        answer = Answer(theirs.value(self.case), [*said, *notes, *self.words.notes])
        found = self._in_time(theirs, answer, FOR_LETTERS)
        if found is not None:
            return found
        answer.notes.append(f"compared in numbers only: {answer.unsure}")
        if answer.value == count_of(*self.case, self.quantity):
            answer.tried = self._tried(theirs)
        else:
            late = passed(self.timeout * FOR_TRIALS, computing=True)
            used = {a for expr in theirs.names.values() for a in expr.free_symbols}
            answer.cases = small_cases(self.case, theirs.value, WRONG_AT, late, used)
        return self._by_numbers(answer)

    def answer(self, answer: Answer) -> Judgement:
        """Judge what a function gave: in letters where it took them and that does not take long."""
        found = None
        if answer.text is not None:
            try:
                found = self._in_time(self._read(answer.text)[0], answer, FOR_JUDGING)
            except InputError as error:  # too large to be multiplied out
                answer.unsure = str(error)
        return found or self._by_numbers(answer)

    def _read(self, text: str) -> tuple[Theirs, Iterable[str]]:
        formula = read(text)
        return Theirs(formula.tree, self.words.meanings(formula.names), text), formula.notes

    def _in_time(self, theirs: Theirs, answer: Answer, share: float) -> Judgement | None:
        """Judge in letters; None, and why in the answer, where that takes too long."""
        try:
            with limited(self.timeout * share, computing=True):
                return self._in_letters(theirs, answer)
        except TooLong:
            answer.unsure = f"multiplying it out takes more than {self.timeout * share:g} s"
            return None

    def _in_letters(self, theirs: Theirs, answer: Answer) -> Judgement:
        """Judge a formula in our letters.

        Of a function, equal in letters is equal for all sizes only where numbers agreed everywhere.
        """
        truth, numbers = self.truth, numbers_of(*self.case)
        expr, below = in_letters(theirs.tree, theirs.names)
        difference = plain(expr - truth.expr)
        below = [b for b in below if not b.xreplace(dict(truth.rules())).is_nonzero]
        where = None if is_zero(difference) else _rules(difference, truth) or None
        settled = where is not None or bool(is_zero(difference))
        verdict, tried, notes = EQUAL, answer.tried, [*answer.notes]
        terms: tuple[Term, ...] = ()
        if not settled and answer.value != truth.value:
            verdict = WRONG
            meanings = vocabulary(self.model, self.case, self.quantity).meanings
            terms = self._terms(
                lambda: explain(expr, difference, truth, numbers, theirs.text, meanings),
                answer,
                truth.shown(difference),
            )
        elif not settled:
            if tried is None or tried.small is None:
                tried = self._tried(theirs)
            verdict = _verdict(tried)
            where = None if tried.small is None else condition(difference, numbers)
        elif below:
            tried = self._tried(theirs)
            verdict, divisor = _verdict(tried), named(below[0])
            notes.append(f"not decided for all sizes: it divides by {divisor}, which may be 0")
        elif answer.text is not None and not sure(answer):
            verdict = TRIED if tried is not None and tried.compared else UNTRIED
            notes += _undecided(answer)
        if verdict == EQUAL:
            tried = None
        elif tried is not None:
            notes += tried.notes()
            where = where or _fixed(tried)
        return self._judgement(
            verdict,
            answer.value,
            expr.free_symbols,
            theirs=expr.subs(truth.folded),
            difference=sympy.Integer(0) if settled else truth.shown(difference),
            terms=terms,
            condition=where,
            counterexample=_counterexample(tried, self.quantity, expr.free_symbols),
            tried=0 if tried is None else tried.compared,
            planned=0 if tried is None else tried.planned,
            notes=tuple(notes),
        )

    def _by_numbers(self, answer: Answer) -> Judgement:
        """Judge a formula of which only numbers are known."""
        tried, notes = answer.tried, [*answer.notes]
        terms: tuple[Term, ...] = ()
        verdict, where = WRONG, None
        if answer.value == self.truth.value and tried is not None:
            verdict, where = _verdict(tried), _fixed(tried)
            notes += tried.notes() + (_undecided(answer) if verdict != HERE else [])
        else:
            terms = self._terms(lambda: explain_numbers(self.case, answer, self.truth), answer)
        return self._judgement(
            verdict,
            answer.value,
            set(),
            theirs=None,
            difference=None,
            terms=terms,
            condition=where,
            counterexample=_counterexample(tried, self.quantity, set()),
            tried=len(answer.cases) if tried is None else tried.compared,
            planned=len(answer.cases) if tried is None else tried.planned,
            notes=tuple(notes),
        )

    def _terms(
        self,
        explained: Callable[[], tuple[Term, ...]],
        answer: Answer,
        whole: sympy.Expr | None = None,
    ) -> tuple[Term, ...]:
        try:
            with limited(self.timeout * FOR_WORDS, computing=True):
                return explained()
        except TooLong:
            off = answer.value - self.truth.value
            return (Term(expr=whole, value=off, words=NO_TIME, known=False),)

    def _judgement(
        self, verdict: str, value: Fraction, letters: set[sympy.Expr], **more: Any
    ) -> Judgement:
        return Judgement(
            verdict=verdict,
            quantity=self.quantity,
            model=self.model.id,
            structure=structure(self.case[0]),
            rests_on=rests_on(self.model, self.case[1], self.quantity),
            free=self.truth.names(letters),
            ours=self.truth.expr.subs(self.truth.folded),
            theirs_value=value,
            ours_value=self.truth.value,
            **more,
        )

    def _tried(self, theirs: Theirs) -> Tried:
        others = theirs.places(self.case, self.quantity)
        late = passed(self.timeout * FOR_TRIALS, computing=True)
        return tried_at(others, theirs.value, self.case, self.quantity, late)


def sure(answer: Answer) -> bool:
    """Tell whether a function was compared in numbers wherever planned,
    and nothing makes letters unsure.
    """
    return answer.tried is not None and answer.tried.complete and answer.unsure is None


def _verdict(tried: Tried) -> str:
    """Choose the verdict on what is right at the model's sizes."""
    if tried.small is not None or (tried.fixed and tried.compared):
        return HERE
    return TRIED if tried.compared else UNTRIED


def _undecided(answer: Answer) -> list[str]:
    """Say why equal numbers are not called equal for all sizes."""
    return [] if answer.unsure is None else [f"not decided for all sizes: {answer.unsure}"]


def _fixed(tried: Tried) -> str | None:
    if not tried.fixed or not tried.compared:
        return None
    sizes = " and ".join(f"{name} = {size}" for name, size in tried.fixed.items())
    return f"{sizes} (it gives an error at all others that were tried)"


def _rules(difference: sympy.Expr, truth: Truth) -> str:
    """Name the fewest rules of sizes by which a difference is zero; nothing where it is not.

    They hold in every model of this structure: key/value heads divide the heads.
    """
    rules = dict(truth.rules())
    used = [letter for letter in rules if letter in difference.free_symbols]
    for n in range(1, len(used) + 1):
        for several in combinations(used, n):
            if is_zero(difference.xreplace({a: rules[a] for a in several})):
                return " and ".join(
                    f"{NAMES[a.name]} is a multiple of {_factor(rules[a])}" for a in several
                )
    return ""


def _factor(product: sympy.Expr) -> str:
    """Name what a size is a multiple of: `2`, or another size."""
    first = next(a for a in product.args if a.is_Integer or a.name in NAMES)
    return str(first) if first.is_Integer else NAMES[first.name]


def _counterexample(
    tried: Tried | None, quantity: str, letters: set[sympy.Expr]
) -> Counterexample | None:
    """Return small sizes at which the two differ: those that either side uses."""
    if tried is None or tried.small is None:
        return None
    case, theirs = tried.small
    used = letters | Truth(*case, quantity).expr.free_symbols
    return Counterexample(
        sizes={NAMES[a.name]: n for a, n in numbers_of(*case).items() if a in used},
        theirs=theirs,
        ours=count_of(*case, quantity),
    )


def judged_file(
    path: str, function: str, model: Model, case: Case, quantity: str, *, timeout: float = TIMEOUT
) -> Judgement:
    """Judge a function of a file, run in a process that is stopped when it hangs."""
    name = f"{shown(path)}:{shown(function)}"
    if not os.path.isfile(path):
        raise InputError(f"{shown(path)}: no such file; give FILE.py:FUNCTION")
    job = {
        "file": path,
        "function": function,
        "name": name,
        "spec": case[0].to_dict(),
        "workload": case[1].to_dict(),
        "quantity": quantity,
        "model": model.id,
        "config": model.source.config if model.source is not None else {},
        "seconds": timeout,
    }
    data = answer_of(json.dumps(job), name, timeout)
    try:
        if "error" in data:
            raise InputError(printable(data["error"]))
        answer = _read(data, case[0])
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: its process wrote over the answer") from None
    return Judge(model, case, quantity, timeout).answer(answer)


def _read(data: Json, like: ModelSpec) -> Answer:
    answer = Answer(Fraction(data["value"]), [printable(note) for note in data["notes"]])
    answer.text, answer.unsure = data["text"], data["unsure"]
    answer.cases = [_case(found, like) for found in data["cases"]]
    if (found := data["tried"]) is not None:
        tried = answer.tried = Tried(found["planned"])
        for name in TRIED_AS_DATA:
            setattr(tried, name, found[name])
        tried.small = None if found["small"] is None else _case(found["small"], like)
    return answer


def _case(data: Json, like: ModelSpec) -> tuple[Case, Fraction]:
    # unchecked, as it was sent: it may have sizes that no rule of ours allows
    spec = like.substituted(**data["spec"])
    return (spec, Workload(**data["workload"])), Fraction(data["value"])


def check(
    formula: object,
    model: Given,
    *,
    quantity: str | None = None,
    workload: Workload | Request | None = None,
    timeout: float = TIMEOUT,
) -> Judgement:
    """Judge `formula`, a text, a SymPy expression or a function, as a count of `model`.

    Without a `quantity`, it is taken as a count of `params`; a text that depends on the run as the
    one of `OF_A_RUN` that its value comes nearest to, which a note says.

    Raises `InputError` where it is no formula, names what the model does not have, or takes more
    than `timeout` seconds.

    >>> check("12*n_layers*d_model**2", "gpt2").verdict
    'wrong'
    >>> check("V*d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d) + d + V*d", "llama-7b").verdict
    'equal'
    >>> check("6*N*D", "llama-7b").quantity
    'train_matmul_flops'
    """
    found = model_of(model)
    if quantity is not None and quantity not in COUNTS:
        known = nearest(quantity, COUNTS, f"choose one of {', '.join(COUNTS)}")
        raise InputError(f"quantity '{shown(quantity)}' is unknown; {known}")
    check_size(model, count(found.spec, Request()).params)
    case = (found.spec, fitted(found.spec, workload or Request()))
    if isinstance(formula, sympy.Basic | int | Fraction):
        formula = _written(formula)  # read as text: the same names, the same bounds
    if isinstance(formula, str):
        judge, notes = Judge(found, case, quantity or UNSAID, timeout), []
        if quantity is None and (nearest_to := judge.find_quantity(formula)):
            judge = Judge(found, case, nearest_to, timeout)
            notes = [
                f"taken as a count of {nearest_to}, which comes nearest; --quantity says another"
            ]
        return judge.text(formula, notes)
    quantity = quantity or UNSAID
    if callable(formula):  # called here: it is the caller's own code
        name = shown(getattr(formula, "__name__", "the function"))
        judge = Judge(found, case, quantity, timeout)
        try:
            with limited(timeout):
                answer = ask(formula, case, judge.words, name, seconds=timeout)
        except TooLong:
            raise InputError(
                f"{name}: stopped after {timeout:g} s; is there a loop without end?"
            ) from None
        return judge.answer(answer)
    raise InputError(
        f"a formula is a text, a SymPy expression or a function: got {shown(repr(formula))}"
    )


def _written(formula: object) -> str:
    try:
        return str(formula)
    except ValueError:
        raise InputError("the number is too long; at most 40 digits") from None
