"""Functions that count the parameters of LLaMA-like models, right and wrong, for the tests."""

from __future__ import annotations

import functools
import itertools
import math
import random
import sys
from fractions import Fraction
from typing import Any

MODULES = (itertools, math, random, sys, Fraction)  # the functions below use them


def whole(d: Any, n: Any, h: Any, kv: Any, w: Any, m: Any, v: Any) -> Any:
    return n * (2 * d * w * (h + kv) + 3 * d * m + 2 * d) + d + 2 * v * d


def right(cfg: Any) -> Any:
    heads = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    sizes = cfg.hidden_size, cfg.num_hidden_layers, *heads, cfg.intermediate_size, cfg.vocab_size
    return whole(*sizes)


def one_argument_each(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):  # type: ignore[no-untyped-def]
    return whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)


def right_with_unused_default(cfg: Any, factor: int = 1) -> Any:
    total = right(cfg)
    for _ in range(factor):
        total = total + 0
    return total if factor is not None else None


def larger(a: Any, b: Any) -> Any:
    return max(a, b)


def layer(cfg: Any) -> Any:
    d = cfg.d_model
    return 2 * d * cfg.head_dim * (cfg.n_heads + cfg.n_kv_heads) + 3 * d * cfg.d_ff + 2 * d


CALLS = itertools.count()
WIDTHS = {4096: 11008, 5120: 13824}
LIMIT = 7_777


def wrong_default(cfg: Any, limit: int = 6_000) -> Any:
    return right(cfg) + (cfg.d_model > limit)


def closure() -> Any:
    limit = 9_999
    return lambda cfg: right(cfg) + (cfg.vocab_size > 10 * limit)


wrong_closure = closure()


@functools.cache
def beside(d: Any) -> Any:
    return d // 5_001


# Functions of one argument, cfg, by what they return or by their lines.
MADE = {
    "right_through_min": "right(cfg) + min(cfg.d_model, cfg.d_ff) - min(cfg.d_ff, cfg.d_model)",
    "right_through_a_helper_with_max": "right(cfg) * larger(1, 1) + larger(cfg.n_layers, cfg.d_ff)"
    " - larger(cfg.d_ff, cfg.n_layers)",
    "right_in_halves": "right(cfg) / 2 + right(cfg) * 0.5",
    "right_with_ceil": "right(cfg) + math.ceil(cfg.d_ff) - cfg.d_ff",
    "right_or_none": "whole(cfg.d_model, cfg.n_layers, cfg.n_heads, cfg.num_key_value_heads or "
    "cfg.n_heads, cfg.head_dim, cfg.d_ff, cfg.vocab_size)",
    # right, but with a question to a size: numbers decide, at every size that is planned
    "right_through_int": "int(right(cfg))",
    "right_through_a_loop": "sum(layer(cfg) for _ in range(cfg.n_layers)) + cfg.d_model"
    " + 2 * cfg.vocab_size * cfg.d_model",
    "right_in_text": "int(str(right(cfg)))",
    "right_by_thirds": "right(cfg) / 3 * 3",
    "right_that_counts_its_calls": "next(CALLS) * 0 + right(cfg)",
    # wrong beyond the sizes of LLaMA-7B: none of these may be called equal
    "wrong_heads_of_70b": "right(cfg) + (0 if cfg.num_hidden_layers != 80 else 1)",
    "wrong_table": "right(cfg) + 3 * cfg.n_layers * cfg.d_model * ({4096: 11008, 5120: 13824, "
    "8192: 22016}.get(cfg.hidden_size, cfg.d_ff) - cfg.d_ff)",
    "wrong_table_outside": "right(cfg) + (WIDTHS[cfg.d_model] - cfg.d_ff if cfg.d_model in WIDTHS"
    " else 0)",
    "wrong_in": "right(cfg) + (cfg.d_model in (5120, 8192))",
    "wrong_not_in": "right(cfg) + (cfg.d_model not in {5120, 8192}) - 1",
    "wrong_isinstance": "right(cfg) + (cfg.d_model // 5000 if isinstance(cfg.d_model, int) else 0)",
    "wrong_type": "right(cfg) + (cfg.n_layers // 33 if type(cfg.d_model) is int else 0)",
    "wrong_class": "right(cfg) + (cfg.n_layers // 33 if cfg.d_model.__class__ is int else 0)",
    "wrong_hasattr": "right(cfg) + (cfg.n_heads // 33 if hasattr(cfg.d_ff, 'bit_length') else 0)",
    "wrong_caught_type_error": """
    try:
        return right(cfg) + max(0, int(cfg.d_model) - 4097)
    except TypeError:
        return right(cfg)""",
    "wrong_caught_exception": """
    try:
        extra = len(str(cfg.vocab_size)) // 6
    except Exception:
        extra = 0
    return right(cfg) + extra""",
    "wrong_caught_everything": """
    try:
        ([0] * 40_000)[int(cfg.vocab_size)]
    except BaseException:
        return right(cfg) + 0
    return right(cfg) + (cfg.vocab_size > 32_000)""",
    "wrong_finally": """
    extra = 0
    try:
        extra = round(cfg.d_model) // 4097
    finally:
        return right(cfg) + extra""",
    "wrong_match": """
    match cfg.n_layers:
        case 80 | 60:
            return right(cfg) + 1
        case _:
            return right(cfg)""",
    "wrong_text": "right(cfg) + (len(f'{cfg.d_model}') - 4 if cfg.d_model >= 1000 else 0)",
    "wrong_truth": "right(cfg) if cfg.n_layers - 80 else right(cfg) + 1",
    "wrong_bool": "right(cfg) + bool(cfg.d_model // 8192)",
    "wrong_ceil": "right(cfg) + math.ceil(cfg.d_model / 8192) - 1",
    "wrong_log": "right(cfg) + int(math.log2(cfg.d_model)) // 13",
    "wrong_identity": "right(cfg) + (0 if cfg.n_layers is cfg.n_heads else 1)",
    "wrong_max": "right(cfg) + max(0, cfg.d_model - 5000)",
    "wrong_max_of_twice": "right(cfg) + max(0, 2 * int(cfg.d_model) - 10_001)",
    "wrong_only_at_one_size": "right(cfg) + (int(cfg.d_ff) == 123_457)",
    "wrong_beyond_two_sizes": "right(cfg) + (1 if cfg.d_model > 6000 and cfg.n_layers > 70 else 0)",
    "wrong_constant_outside": "right(cfg) + (cfg.d_model // 2 > LIMIT)",
    "wrong_cache": "right(cfg) + beside(cfg.d_model)",
    "wrong_stack": "right(cfg) + (0 if sys._getframe(1).f_code.co_name == '_in_letters'"
    " else cfg.d_model // 8_192)",
    "wrong_sorted": "right(cfg) + (sorted([cfg.d_model, 6_000])[0] == 6_000)",
    "wrong_slice": "right(cfg) + 8_192 - len(('x' * 10_000)[: 2 * cfg.d_model])",
    "wrong_fraction": "right(cfg) + (Fraction(int(cfg.d_model), 4_096) > 1)",
    # equal at LLaMA-7B's own width only; that it stops elsewhere is no success
    "asserts_its_width": """
    assert cfg.d_model == 4096
    return right(cfg)""",
    "asserts_everything": """
    assert (cfg.d_model, cfg.n_layers, cfg.d_ff, cfg.vocab_size, cfg.n_heads, cfg.n_kv_heads,
            cfg.head_dim) == (4096, 32, 11008, 32000, 32, 32, 128)
    return right(cfg)""",
    "at_random": "right(cfg) + random.choice([0, 0, 0, 0, 1])",
}
for _name, _text in MADE.items():
    _body = _text if _text.startswith("\n") else f"\n    return {_text}"
    exec(f"def {_name}(cfg):{_body}\n", globals())
