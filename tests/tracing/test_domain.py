"""What is asked of sizes, in the fewest words: chunks, ends, what follows from the rest."""

from __future__ import annotations

import pytest
import sympy

from metacount.cli.expressions import in_fields, whole_python
from metacount.spec import Workload
from metacount.tracing.domain import for_arithmetic, in_words, sign_above
from metacount.tracing.forms import Tracer
from metacount.tracing.symbols import divides, in_one_chunk, known_counts, symbol

S, c, w, n = (symbol(name) for name in ("S", "c", "w", "n"))
CHUNKS = sympy.ceiling(S / c)


def test_one_chunk_is_a_length_that_fits() -> None:
    one = in_one_chunk(sympy.Eq(CHUNKS, 1, evaluate=False))
    assert in_words(one, str) == "S ≤ c"
    two = sympy.Eq(CHUNKS, 2, evaluate=False)
    assert in_one_chunk(two) == two
    assert known_counts([one, sympy.Eq(sympy.ceiling(S / 64), 32, evaluate=False)]) == {
        CHUNKS: 1,
        sympy.ceiling(S / 64): 32,
    }
    assert known_counts([sympy.Le(S + 1, c), divides(c, S)]) == {}


@pytest.mark.parametrize("length", [1, 63, 64, 65, 700])
def test_a_number_of_chunks_in_words_and_in_python(length: int) -> None:
    expr = 3 * S * sympy.ceiling((S + n) / c)
    assert in_fields(expr) == "3·⌈(S + n)/c⌉·S"
    chunks = (length + 5 + 63) // 64
    at = {"S": length, "n": 5, "c": 64}
    assert eval(whole_python(expr), at) == 3 * length * chunks
    # a power of it, and what is taken away from
    squared = n - 2 * sympy.ceiling((S + n) / c) ** 2
    assert eval(whole_python(squared), at) == 5 - 2 * chunks * chunks
    cubed = S * sympy.ceiling((S + n) / c) ** 2
    assert eval(whole_python(cubed), at) == length * chunks * chunks


@pytest.mark.release
def test_equal_sizes_are_not_asked_to_differ() -> None:
    # the table of positions is cut to S, which is all of it here
    config = {"model_type": "mpt", "n_layers": 2, "max_seq_len": 64}
    at_the_end = Tracer(config, Workload(seq_len=64)).form("matmul_flops")
    before = Tracer(config, Workload(seq_len=48)).form("matmul_flops")
    assert sympy.expand(at_the_end.total - before.total) == 0
    assert "S ≤ max_seq_len" in [in_words(one, str) for one in at_the_end.domain]
    assert "S < max_seq_len" in [in_words(one, str) for one in before.domain]


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("a*b - 8", 2),
        ("a*b - 9", 1),
        ("a*b - 10", 0),
        ("a - b", 0),
        ("a**2*b - a*b + a", 2),
        ("a - floor(1/b) - 3", 1),
        ("a/2 - 1", 2),
    ],
)
def test_signs_are_shown_of_all_sizes_from_three(text: str, sign: int) -> None:
    a, b = sympy.symbols("a b", integer=True, positive=True)
    expr = sympy.sympify(text, locals={"a": a, "b": b})
    assert sign_above(for_arithmetic(expr, [a, b]), {a: 3, b: 3}) == sign
    assert sign_above(expr, {a: 3, b: 3}) == sign  # the slower way
