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
from metacount.check.call import ask
from metacount.check.comparison import (
    RUN,
    Evidence,
    Theirs,
    Truth,
    condition,
    count_of,
    named,
    of_the_run,
    small_cases,
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
from metacount.check.sizes import Case, places, sizes_of
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

    from metacount.resolve import Given


def rests_on(model: Model, workload: Workload, quantity: str) -> str:
    """Say which formula stands on the model's side, and what was shown of it beside which code.

    >>> from metacount.resolve import find_model
    >>> from metacount.spec import Workload
    >>> rests_on(find_model("llama-7b"), Workload(), "no such quantity")
    'our textbook formula alone: nothing is recorded of it beside code'
    """
    proven, texts = proven_of(model, count(model.spec, workload)), []
    for side in () if proven is None else (proven.code, proven.ours):
        records = () if side is None else side.verdicts
        record = next((record for record in records if record.quantity == quantity), None)
        if proven is not None and side is not None and record is not None:
            code = f"transformers' code of {side.name}"
            domain = sizes_text(record.where, proven.small, SHOWN)
            text = SENTENCES.get(record.verdict, NOT_SAID).format(
                code=code if side.side == CODE else "our reference modules",
                domain=f"for {domain}",
                text=record.text,
            )
            texts.append(text)
    return "our textbook formula" + (
        ", " + "; ".join(texts) if texts else " alone: nothing is recorded of it beside code"
    )


# Of what is recorded of our formula less a code, by its verdict.
SENTENCES = {
    "equal": "proven equal to {code} {domain}",
    "chosen": "equal to {code} for the experts that a token chose, {domain}; that code runs {text} "
    "more FLOPs",
    "differs": "not what {code} computes: the formula less the code is {text}",
}
NOT_SAID = "not proven against {code} at these sizes: {text}"


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
    if spec.attention == "compressed":
        return f"compressed attention by the letters {spec.compression_pattern}"
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
    parallel = f"{kind} FFN and beside it " if BESIDE in spec.ffn_pattern else ""
    every = " in every moe_every-th layer" if spec.moe_every > 1 else ""
    if set(WITH_EXPERTS) & set(spec.ffn_pattern):
        every = _of_layers(BESIDE if parallel else "E", spec.ffn_pattern)
    more = {
        " and shared experts": spec.n_shared_experts,
        " and zero experts": spec.n_zero_experts,
        " in a latent": spec.moe_latent_rank,
        " (with rows that nobody reads)": spec.zero_expert_rows,
        bias: True,
        " after dense layers": spec.n_dense_layers,
        every: True,
    }
    return f"{parallel}{kind} experts{''.join(words for words, given in more.items() if given)}"


TIMEOUT = 10.0  # seconds for a formula, whatever it is
FOR_LETTERS, FOR_TRIALS, FOR_WORDS = 0.6, 0.2, 0.2  # shares of it; words are within letters
FOR_JUDGING = 0.5  # share of it that letters may take of a function
NO_TIME = "not accounted for: no time was left to look for the mistake"
RUN_SIZES = ("batch_size", "seq_len", "source_len")
UNSAID = "params"  # what a formula counts where nobody says
NEAR = Fraction(11, 10)  # times more or less than the parameters
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
        config = model.source.config if model.source is not None else None
        self.words = Vocabulary(*case, quantity, name=model.id, config=config)

    @cached_property
    def truth(self) -> Truth:
        """What the model has."""
        return Truth(*self.case, self.quantity)

    def find_quantity(self, text: str) -> str:
        """Find the quantity that a text comes nearest to, if it depends on the run; else ""."""
        theirs, _ = self._read(text)
        letters = {str(a) for a in theirs.used & RUN - {BYTES_LETTER}}
        value, (spec, run) = theirs.value(self.case), self.case
        lengths = {name: n for name, n in sizes_of(self.case).items() if name in RUN_SIZES}
        longer = {name: 2 * n + 1 for name, n in lengths.items()}
        with suppress(InputError, SpecError):  # it divides by zero there
            if theirs.value((spec, Workload(**{**run.to_dict(), **longer}))) == value:
                return ""  # what it names of a run does not matter
        ratios: dict[str, Fraction] = {}
        for name in (UNSAID, *OF_A_RUN) if letters and value > 0 else ():
            if name == UNSAID or letters <= {*FIGURES[name].run}:
                with suppress(SpecError):  # of such a model there is none
                    if ours := count_of(*self.case, name):
                        ratios[name] = max(value / ours, ours / value)
        if ratios.get(UNSAID, NEAR) >= NEAR:  # of parameters, a formula may name the positions
            ratios.pop(UNSAID, None)
        nearest = min(ratios, key=lambda name: ratios[name], default=UNSAID)
        return "" if nearest == UNSAID else nearest

    def text(self, text: str, notes: Iterable[str] = ()) -> Judgement:
        """Judge a text, of which something may have been said."""
        theirs, more = self._read(text)
        evidence = Evidence(theirs.value(self.case), [*notes, *more, *self.words.notes])
        judgement = self._in_time(theirs, evidence, FOR_LETTERS)
        if judgement is not None:
            return judgement
        evidence.notes.append(f"compared in numbers only: {evidence.unsure}")
        if evidence.value == count_of(*self.case, self.quantity):
            self._try_others(theirs, evidence)
        else:
            late = passed(self.timeout * FOR_TRIALS, computing=True)
            evidence.cases = small_cases(self.case, theirs.value, late, theirs.used)
        return self._by_numbers(evidence)

    def function(self, evidence: Evidence) -> Judgement:
        """Judge what a function gave: in letters where it took them and that does not take long."""
        judgement = None
        if evidence.text is not None:
            try:
                judgement = self._in_time(self._read(evidence.text)[0], evidence, FOR_JUDGING)
            except InputError as error:  # too large to be multiplied out
                evidence.unsure = str(error)
        return judgement or self._by_numbers(evidence)

    def _read(self, text: str) -> tuple[Theirs, Iterable[str]]:
        formula = read(text)
        return Theirs(formula.tree, self.words.meanings(formula.names)), formula.notes

    def _try_others(self, theirs: Theirs, evidence: Evidence) -> None:
        run = of_the_run(self.quantity, theirs.used)
        others = places(self.case, theirs.literals, theirs.gaps(), run=run)
        late = passed(self.timeout * FOR_TRIALS, computing=True)
        evidence.try_others(others, theirs.value, self.case, self.quantity, late)

    def _in_time(self, theirs: Theirs, evidence: Evidence, share: float) -> Judgement | None:
        """Judge in letters; None, and why in the evidence, where that takes too long."""
        try:
            with limited(self.timeout * share, computing=True):
                return self._in_letters(theirs, evidence)
        except TooLong:
            evidence.unsure = f"multiplying it out takes more than {self.timeout * share:g} s"
            return None

    def _in_letters(self, theirs: Theirs, evidence: Evidence) -> Judgement:
        """Judge a formula in our letters.

        Of a function, equal in letters is equal for all sizes only where numbers agreed everywhere.
        """
        truth, numbers = self.truth, numbers_of(*self.case)
        expr, divisors = in_letters(theirs.tree, theirs.names)
        difference = plain(expr - truth.expr)
        rules = truth.rules()
        products = {letter: product for letter, (_, product) in rules.items()}
        divisors = [below for below in divisors if not below.xreplace(products).is_nonzero]
        where = None if is_zero(difference) else _rules(difference, rules)
        settled = where is not None or bool(is_zero(difference))
        verdict, notes, terms = EQUAL, list[str](), tuple[Term, ...]()
        if not settled and evidence.value != truth.value:
            verdict = WRONG
            terms = self._terms(
                lambda: explain(expr, difference, truth, numbers, theirs),
                evidence,
                truth.shown(difference),
            )
        elif not settled:
            if evidence.differs is None:
                self._try_others(theirs, evidence)
            verdict = evidence.verdict
            where = None if evidence.differs is None else condition(difference, numbers)
        elif divisors:
            self._try_others(theirs, evidence)
            verdict, divisor = evidence.verdict, named(divisors[0])
            notes = [f"not decided for all sizes: it divides by {divisor}, which may be 0"]
        elif evidence.text is not None and not evidence.is_sure:
            verdict = TRIED if evidence.compared else UNTRIED
            notes = evidence.undecided()
        return self._judgement(
            verdict,
            evidence,
            notes,
            expr.free_symbols,
            theirs=expr.subs(truth.folded),
            difference=sympy.Integer(0) if settled else truth.shown(difference),
            terms=terms,
            condition=where,
        )

    def _by_numbers(self, evidence: Evidence) -> Judgement:
        verdict, notes, terms = WRONG, list[str](), tuple[Term, ...]()
        if evidence.value == self.truth.value and evidence.is_compared:
            verdict = evidence.verdict
            notes = evidence.undecided() if verdict != HERE else []
        else:
            terms = self._terms(lambda: explain_numbers(self.case, evidence, self.truth), evidence)
        return self._judgement(
            verdict, evidence, notes, set(), theirs=None, difference=None, terms=terms
        )

    def _terms(
        self,
        explained: Callable[[], tuple[Term, ...]],
        evidence: Evidence,
        difference: sympy.Expr | None = None,
    ) -> tuple[Term, ...]:
        try:
            with limited(self.timeout * FOR_WORDS, computing=True):
                return explained()
        except TooLong:
            off = evidence.value - self.truth.value
            return (Term(expr=difference, value=off, words=NO_TIME, known=False),)

    def _judgement(
        self,
        verdict: str,
        evidence: Evidence,
        notes: list[str],
        letters: set[sympy.Expr],
        condition: str | None = None,
        **more: Any,
    ) -> Judgement:
        tried = planned = 0
        counterexample = None
        if verdict not in (EQUAL, WRONG):
            tried, planned = evidence.compared, evidence.planned
            notes = [*notes, *evidence.not_compared()]
            condition = condition or evidence.condition
            counterexample = self._counterexample(evidence, letters)
        elif verdict == WRONG and more["theirs"] is None:
            tried = planned = len(evidence.cases)
        return Judgement(
            verdict=verdict,
            quantity=self.quantity,
            model=self.model.id,
            structure=structure(self.case[0]),
            rests_on=rests_on(self.model, self.case[1], self.quantity),
            free=self.truth.names(letters),
            ours=self.truth.expr.subs(self.truth.folded),
            theirs_value=evidence.value,
            ours_value=self.truth.value,
            condition=condition,
            counterexample=counterexample,
            tried=tried,
            planned=planned,
            notes=(*evidence.notes, *notes),
            **more,
        )

    def _counterexample(
        self, evidence: Evidence, letters: set[sympy.Expr]
    ) -> Counterexample | None:
        """Return small sizes at which the two differ: those that either side uses."""
        if evidence.differs is None:
            return None
        case, theirs = evidence.differs
        used = letters | Truth(*case, self.quantity).expr.free_symbols
        return Counterexample(
            sizes={NAMES[a.name]: n for a, n in numbers_of(*case).items() if a in used},
            theirs=theirs,
            ours=count_of(*case, self.quantity),
        )


def _rules(difference: sympy.Expr, rules: dict[sympy.Expr, tuple[str, sympy.Expr]]) -> str | None:
    """Name the fewest rules of sizes by which a difference is zero; None where it is not.

    They hold in every model of this structure: key/value heads divide the heads.
    """
    used = [letter for letter in rules if letter in difference.free_symbols]
    for n in range(1, len(used) + 1):
        for several in combinations(used, n):
            if is_zero(difference.xreplace({letter: rules[letter][1] for letter in several})):
                return " and ".join(
                    f"{NAMES[letter.name]} is a multiple of {rules[letter][0]}"
                    for letter in several
                )
    return None


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
    if "error" in data:
        raise InputError(printable(data["error"]))
    try:
        evidence = Evidence.from_data(data, case[0])
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"{name}: its process wrote over the answer") from None
    return Judge(model, case, quantity, timeout).function(evidence)


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
    known = model_of(model)
    if quantity is not None and quantity not in COUNTS:
        remedy = nearest(quantity, COUNTS, f"choose one of {', '.join(COUNTS)}")
        raise InputError(f"quantity '{shown(quantity)}' is unknown; {remedy}")
    check_size(model, count(known.spec, Request()).params)
    if known.spec.compression_pattern or known.spec.n_streams:
        raise InputError(
            "check knows no parts of compressed attention and of several residual streams; "
            "`count` and `verify` do"
        )
    case = (known.spec, fitted(known.spec, workload or Request()))
    if isinstance(formula, sympy.Basic | int | Fraction):
        formula = _written(formula)  # read as text: the same names, the same bounds
    if isinstance(formula, str):
        judge, notes = Judge(known, case, quantity or UNSAID, timeout), []
        if quantity is None and (nearest_to := judge.find_quantity(formula)):
            judge = Judge(known, case, nearest_to, timeout)
            notes = [
                f"taken as a count of {nearest_to}, which comes nearest; --quantity says another"
            ]
        return judge.text(formula, notes)
    quantity = quantity or UNSAID
    if callable(formula):  # called here: it is the caller's own code
        name = shown(getattr(formula, "__name__", "the function"))
        judge = Judge(known, case, quantity, timeout)
        try:
            with limited(timeout):
                evidence = ask(formula, case, judge.words, name, seconds=timeout)
        except TooLong:
            raise InputError(
                f"{name}: stopped after {timeout:g} s; is there a loop without end?"
            ) from None
        return judge.function(evidence)
    raise InputError(
        f"a formula is a text, a SymPy expression or a function: got {shown(repr(formula))}"
    )


def _written(formula: object) -> str:
    try:
        return str(formula)
    except ValueError:
        raise InputError("the number is too long; at most 40 digits") from None
