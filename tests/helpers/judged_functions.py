"""Functions that count the parameters of LLaMA-like models, right and wrong, for the tests."""

from __future__ import annotations

import functools
import itertools
import math
import random
import sys
from fractions import Fraction
from typing import Any


def right(cfg: Any) -> Any:
    return whole(
        cfg.hidden_size,
        cfg.num_hidden_layers,
        cfg.num_attention_heads,
        cfg.num_key_value_heads,
        cfg.head_dim,
        cfg.intermediate_size,
        cfg.vocab_size,
    )


def whole(d: Any, n: Any, h: Any, kv: Any, w: Any, m: Any, v: Any) -> Any:
    return n * (2 * d * w * (h + kv) + 3 * d * m + 2 * d) + d + 2 * v * d


def one_argument_each(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):  # type: ignore[no-untyped-def]
    return whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size)


def right_with_unused_default(cfg: Any, factor: int = 1) -> Any:
    total = right(cfg)
    for _ in range(factor):
        total = total + 0
    return total if factor is not None else None


def right_through_min(cfg: Any) -> Any:
    return right(cfg) + min(cfg.hidden_size, cfg.vocab_size) - min(cfg.vocab_size, cfg.hidden_size)


def right_through_a_helper_with_max(cfg: Any) -> Any:
    return (
        right(cfg) * larger(1, 1) + larger(cfg.n_layers, cfg.d_ff) - larger(cfg.d_ff, cfg.n_layers)
    )


def larger(a: Any, b: Any) -> Any:
    return max(a, b)


def right_in_halves(cfg: Any) -> Any:
    return right(cfg) / 2 + right(cfg) * 0.5


def right_with_ceil(cfg: Any) -> Any:
    return right(cfg) + math.ceil(cfg.d_ff) - cfg.d_ff


def right_or_none(cfg: Any) -> Any:
    kv = cfg.num_key_value_heads or cfg.num_attention_heads
    return whole(cfg.d_model, cfg.n_layers, cfg.n_heads, kv, cfg.head_dim, cfg.d_ff, cfg.vocab_size)


# Right, but with a question to a size: numbers decide, at every size that is planned.
def right_through_int(cfg: Any) -> Any:
    return int(right(cfg))


def right_through_a_loop(cfg: Any) -> Any:
    return (
        sum(layer(cfg) for _ in range(cfg.n_layers))
        + cfg.d_model
        + 2 * cfg.vocab_size * cfg.d_model
    )


def layer(cfg: Any) -> Any:
    d = cfg.d_model
    return 2 * d * cfg.head_dim * (cfg.n_heads + cfg.n_kv_heads) + 3 * d * cfg.d_ff + 2 * d


def right_in_text(cfg: Any) -> Any:
    return int(str(right(cfg)))


def right_by_thirds(cfg: Any) -> Any:
    return right(cfg) / 3 * 3


CALLS = itertools.count()


def right_that_counts_its_calls(cfg: Any) -> Any:
    next(CALLS)
    return right(cfg)


# Wrong beyond the sizes of LLaMA-7B: none of these may be called equal.
def wrong_heads_of_70b(cfg: Any) -> Any:
    kv = 8 if cfg.num_hidden_layers == 80 else cfg.num_key_value_heads
    return whole(
        cfg.d_model, cfg.n_layers, cfg.n_heads, kv, cfg.head_dim, cfg.d_ff, cfg.vocab_size
    ) + (0 if cfg.num_hidden_layers != 80 else 1)


def wrong_table(cfg: Any) -> Any:
    d_ff = {4096: 11008, 5120: 13824, 8192: 22016}.get(cfg.hidden_size, cfg.d_ff)
    return right(cfg) + 3 * cfg.n_layers * cfg.d_model * (d_ff - cfg.d_ff)


WIDTHS = {4096: 11008, 5120: 13824}


def wrong_table_outside(cfg: Any) -> Any:
    return right(cfg) + (WIDTHS[cfg.d_model] - cfg.d_ff if cfg.d_model in WIDTHS else 0)


def wrong_in(cfg: Any) -> Any:
    return right(cfg) + (cfg.d_model in (5120, 8192))


def wrong_not_in(cfg: Any) -> Any:
    return right(cfg) + (cfg.d_model not in {5120, 8192}) - 1


def wrong_isinstance(cfg: Any) -> Any:
    if not isinstance(cfg.d_model, int):
        return right(cfg)
    return right(cfg) + cfg.d_model // 5000


def wrong_type(cfg: Any) -> Any:
    return right(cfg) if type(cfg.d_model) is not int else right(cfg) + cfg.n_layers // 33


def wrong_class(cfg: Any) -> Any:
    return right(cfg) if cfg.d_model.__class__ is not int else right(cfg) + cfg.n_layers // 33


def wrong_hasattr(cfg: Any) -> Any:
    return right(cfg) + (cfg.n_heads // 33 if hasattr(cfg.d_model, "bit_length") else 0)


def wrong_caught_type_error(cfg: Any) -> Any:
    try:
        return right(cfg) + max(0, int(cfg.d_model) - 4097)
    except TypeError:
        return right(cfg)


def wrong_caught_exception(cfg: Any) -> Any:
    try:
        extra = len(str(cfg.vocab_size)) // 6
    except Exception:
        extra = 0
    return right(cfg) + extra


def wrong_caught_everything(cfg: Any) -> Any:
    try:
        extra = [0] * 40_000
        extra[int(cfg.vocab_size)]
    except BaseException:
        return right(cfg) + 0
    return right(cfg) + (cfg.vocab_size > 32_000)


def wrong_finally(cfg: Any) -> Any:
    extra = 0
    try:
        extra = round(cfg.d_model) // 4097
    finally:
        return right(cfg) + extra  # noqa: B012


def wrong_text(cfg: Any) -> Any:
    return right(cfg) + len(f"{cfg.d_model}") - 4 if cfg.d_model >= 1000 else right(cfg)


def wrong_match(cfg: Any) -> Any:
    match cfg.n_layers:
        case 80 | 60:
            return right(cfg) + 1
        case _:
            return right(cfg)


def wrong_truth(cfg: Any) -> Any:
    return right(cfg) if cfg.n_layers - 80 else right(cfg) + 1


def wrong_bool(cfg: Any) -> Any:
    return right(cfg) + bool(cfg.d_model // 8192)


def wrong_ceil(cfg: Any) -> Any:
    return right(cfg) + math.ceil(cfg.d_model / 8192) - 1


def wrong_log(cfg: Any) -> Any:
    return right(cfg) + int(math.log2(cfg.d_model)) // 13


def wrong_identity(cfg: Any) -> Any:
    return right(cfg) + (0 if cfg.n_layers is cfg.n_heads else 1)


def wrong_max(cfg: Any) -> Any:
    return right(cfg) + max(0, cfg.d_model - 5000)


def wrong_max_of_twice(cfg: Any) -> Any:
    return right(cfg) + max(0, 2 * int(cfg.d_model) - 10_001)


def wrong_only_at_one_size(cfg: Any) -> Any:
    return right(cfg) + (int(cfg.d_ff) == 123_457)


def wrong_beyond_two_sizes(cfg: Any) -> Any:
    return right(cfg) + (1 if cfg.d_model > 6000 and cfg.n_layers > 70 else 0)


def wrong_default(cfg: Any, limit: int = 6_000) -> Any:
    return right(cfg) + (cfg.d_model > limit)


LIMIT = 7_777


def wrong_constant_outside(cfg: Any) -> Any:
    return right(cfg) + (cfg.d_model // 2 > LIMIT)


def closure() -> Any:
    limit = 9_999

    def wrong_closure(cfg: Any) -> Any:
        return right(cfg) + (cfg.vocab_size > 10 * limit)

    return wrong_closure


wrong_closure = closure()


@functools.cache
def beside(d: Any) -> Any:
    return d // 5_001


def wrong_cache(cfg: Any) -> Any:
    return right(cfg) + beside(cfg.d_model)


def wrong_stack(cfg: Any) -> Any:
    letters = sys._getframe(1).f_code.co_name == "_in_letters"
    return right(cfg) + (0 if letters else cfg.d_model // 8_192)


def wrong_sorted(cfg: Any) -> Any:
    return right(cfg) + (sorted([cfg.d_model, 6_000])[0] == 6_000)


def wrong_slice(cfg: Any) -> Any:
    return right(cfg) + len("x" * 10_000) - len(("x" * 10_000)[: 2 * cfg.d_model]) - 1_808


def wrong_fraction(cfg: Any) -> Any:
    return right(cfg) + (Fraction(int(cfg.d_model), 4_096) > 1)


# Equal at LLaMA-7B's own width only; that it stops elsewhere is no success.
def asserts_its_width(cfg: Any) -> Any:
    assert cfg.d_model == 4096
    return right(cfg)


def asserts_everything(cfg: Any) -> Any:
    assert (
        cfg.d_model,
        cfg.n_layers,
        cfg.d_ff,
        cfg.vocab_size,
        cfg.n_heads,
        cfg.n_kv_heads,
        cfg.head_dim,
    ) == (4096, 32, 11008, 32000, 32, 32, 128)
    return right(cfg)


def at_random(cfg: Any) -> Any:
    return right(cfg) + random.choice([0, 0, 0, 0, 1])
