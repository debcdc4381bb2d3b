"""Reading a formula: what is arithmetic is read exactly, all else is refused quickly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy
from helpers import one_line

import metacount
from metacount.algebra.exact import in_letters, is_whole, is_zero, plain, value_at
from metacount.algebra.text import read as tree_of
from metacount.errors import InputError

D, N, S = (sympy.Symbol(name, integer=True, positive=True) for name in "dNS")
LETTERS = {"d": D, "N": N, "S": S}


def parsed(text: str) -> Any:
    expr, _ = in_letters(tree_of(text).tree, LETTERS)
    return expr


def read(text: str, **numbers: int) -> Fraction:
    return value_at(parsed(text), {LETTERS[name]: n for name, n in numbers.items()})


# Texts at d = 7, N = 5, S = 3, by their value: a sign is of the power, as in Python; // is floored,
# not cut; a decimal is exact, no binary float comes near.
ARITHMETIC: dict[int | Fraction, list[str]] = {
    14: ["2 + 3*4"],
    -49: ["-d**2"],
    512: ["2**3**2"],
    3: ["d//2", "Mod(d, 4)"],
    -4: ["-d//2"],
    1: ["d%3", "d - N - 1"],
    2: ["-d%3"],
    7: ["floor(d/2) + ceil(d/2)", "max(d, N)", "(((d)))"],
    5: ["min(d, N, 6)"],
    8: ["round_up(d, 4)"],
    16: ["ceiling(d/2) + Min(d, N) + Max(d, N)"],
    34: ["N×d − 1"],
    49: ["d^2", "d²"],
    3535: ["N·d·(3 + 2·d²)"],
    7000: ["1e3*d", "1_000*d"],
    7001: ["d+" * 1000 + "1"],
    Fraction(7, 2): ["d/2"],
    Fraction(35, 2): ["2.5*d"],
    Fraction(7, 10): ["0.1*d"],
    Fraction(56, 3): ["8/3*d"],
    Fraction(1, 5): ["d / N / 7"],
    Fraction(1, 7): ["d**-1"],
}


@pytest.mark.parametrize("value", ARITHMETIC)
def test_arithmetic_is_exact(value: int | Fraction) -> None:
    for text in ARITHMETIC[value]:
        assert read(text, d=7, N=5, S=3) == value, text


# What is no formula, by what is said of it.
REFUSED = {
    "is empty": ["", "  "],
    "ends too early": ["d +"],
    "not closed": ["(d"],
    "out of place": ["()", "d)", "*d", "d,"],
    "indexing at column 2": ["d[0]"],
    "'if' at column 3": ["d if N else S"],
    "'lambda' at column 1": ["lambda"],
    "a text at column 12": ["__import__('os')"],
    "a call of 'eval'": ["eval(d)"],
    "a sign is missing before": ["2d", "d N"],
    "takes": ["min(d)", "floor(d, 2)"],
    "divides by zero": ["1/0", "d/(N - N)", "d//0", "d%0", "0**-1"],
    "power": ["d**17", "(d + N)**-1"],
    "exponent": ["d**N", "d**2.5"],
    "'ｄ' at column 1": ["ｄ"],
    r"'\\x00' at column 2": ["d\0"],
    r"'\\x1b' at column 2": ["d\x1b[31m"],
    "an attribute|an assignment": ["d.real", "d = 3"],
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_no_formula_is_named(said: str) -> None:
    for text in REFUSED[said]:
        with pytest.raises(InputError, match=said) as error:
            parsed(text)
        assert one_line(error.value).isprintable()


HOSTILE = [
    *("9**9**9**9", "2**100000*d", "1e999", "1e-999", "1" * 9000, "d" * 1_000_000),
    *("(" * n + "1" + ")" * n for n in (3000, 10_000)),
    *("-" * 9000 + "1", "-" * 2000 + "1", "d*" * 1000 + "d", "1+" * 4000 + "1"),
    *("((((d + N)**4 + S)**4 + 1)**4 + N)**4", "(d + N + S + 1)**16", "((d + 1)**16)**16"),
    *("d" + "//2" * 1000, "floor(" * 30 + "d" + ")" * 30, "min(d, " * 10 + "1" + ")" * 10),
    *("+".join(f"1/(d + {i})" for i in range(40)), "*".join(["9999999999"] * 100)),
    *("d" + "**2" * 500, "d" + "²" * 500),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(InputError):
        parsed(text)


def test_floors_that_change_nothing() -> None:
    assert plain(sympy.floor(S * (S - 1) / 2) - (S**2 - S) / 2) == 0
    assert is_whole(S * (S + 1) * (S + 2) / 6)
    assert not is_whole(S * (S + 1) / 3)
    # ⌊N/2⌋ + ⌊(N + 1)/2⌋ = N, by the remainders of N; ⌊N/2⌋ is N/2 for even N only
    assert is_zero(sympy.floor(N / 2) + sympy.floor((N + 1) / 2) - N) is True
    assert is_zero(sympy.floor(N / 2) - N / 2) is None
    assert is_zero(sympy.Min(N, S) - sympy.Min(S, N)) is True
    assert is_zero(N - S) is False


def test_what_is_zero_is_zero_at_sizes() -> None:
    """Sums of floors of N + a over k: what is said of all sizes, at the first 60.

    floor(N/k) + floor((N + 1)/k) + ... + floor((N + k - 1)/k) - N is 0.
    """
    for k in (2, 3, 5):
        floors = [sympy.floor((N + a) / k) for a in range(k)]
        assert is_zero(sympy.Add(*floors, -N)) is True
        for expr in (sympy.Add(*floors, 1 - N), floors[0] - floors[1], 2 * floors[0] - N):
            values = {value_at(expr, {N: n}) for n in range(1, 61)}
            assert values != {0} and is_zero(expr) in (False, None)


@pytest.mark.parametrize(
    ("text", "model", "quantity", "first"),
    [
        ("12*L*d^2", "gpt2", "params", "embedding left out"),
        # N the parameters, D the tokens: forward and backward, 2 FLOPs a multiply-add
        ("6*N*D", "llama3-8b", "matmul_flops", "a factor of 3: a forward and a backward, not"),
        ("6*P*D", "gpt2", "matmul_flops", "a factor of 3: a forward and a backward, not"),
        ("2*L*T*h_kv*h_d", "llama3-8b", "kv_cache_bytes", "values, not bytes"),
    ],
)
def test_the_letters_of_papers_on_scaling(text: str, model: str, quantity: str, first: str) -> None:
    result = metacount.check(text, model, quantity=quantity)
    assert result.terms[0].words.startswith(first)
    assert any(" is taken as " in note for note in result.notes)
    with pytest.raises(InputError, match="d_model, or batch_size"):  # a letter of two meanings
        metacount.check("12*L*D**2", "gpt2")


RUNS = {
    ("6*N*D", "llama-7b"): "train_matmul_flops",
    ("2*N*D", "llama-7b"): "causal_matmul_flops",
    ("2*n_layers*n_kv_heads*head_dim*2*seq_len", "llama-7b"): "kv_cache_bytes",
    ("6*N*D", "mamba-2.8b"): "train_matmul_flops",  # whose cache of keys is 0
    ("2*N*D", "bert-base"): "matmul_flops",  # which no loss trains
    ("S - S", "gpt2"): "params",  # which is near to nothing
    ("12*L*d^2 + 0*B*S*V", "gpt2"): "params",  # whose value no run changes
}


@pytest.mark.parametrize(("text", "model"), RUNS)
def test_a_text_of_a_run_is_taken_as_what_it_comes_nearest_to(text: str, model: str) -> None:
    judgement = metacount.check(text, model)
    assert judgement.quantity == RUNS[text, model]
    said = [note for note in judgement.notes if "comes nearest" in note]
    assert len(said) == (judgement.quantity != "params")
    assert metacount.check(text, model, quantity="params").quantity == "params"


def test_six_n_d_is_explained_part_by_part() -> None:
    spec, tokens = metacount.find_model("deepseek-v3").spec, 2048
    found = metacount.check("6*N*D", "deepseek-v3")
    d, moe = spec.d_model, spec.n_layers - spec.n_dense_layers
    width = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
    idle = 3 * d * spec.d_ff_expert * (spec.n_experts - spec.top_k) * moe
    norms = spec.n_layers * (2 * d + spec.q_lora_rank + spec.kv_lora_rank) + d
    assert [(term.value, term.known) for term in found.terms] == [
        (6 * tokens * idle, True),
        (-6 * spec.n_layers * tokens**2 * spec.n_heads * width, True),
        (6 * tokens * spec.vocab_size * d, True),
        (6 * tokens * norms, True),
    ]
    assert sum(term.value for term in found.terms) == found.theirs_value - found.ours_value
