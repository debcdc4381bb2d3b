"""The letters for numbers of blocks: each counts the blocks that its meaning names, one by one."""

from __future__ import annotations

from collections.abc import Callable

from helpers.small_specs import DENSE

from metacount.catalog import entries
from metacount.spec import ModelSpec
from metacount.spec.stack import Stack
from metacount.textbook.closed_form import layers_of

# What each letter counts, asked of one block.
KINDS: dict[str, Callable[[Stack, int], bool]] = {
    "N_w": lambda stack, i: attends(stack, i) and sees(stack, i) == "L",
    "N_wc": lambda stack, i: KINDS["N_w"](stack, i) and not stack.borrows(i),
    "N_m2": lambda stack, i: stack.feed_forward is not None and stack.feed_forward.is_second(i),
    "N_g": lambda stack, i: attends(stack, i) and sees(stack, i) == "G",
    "N_a": lambda stack, i: attends(stack, i),
    "N_r": lambda stack, i: stack.mixer_of(i) in "RPS",
    "N_i": lambda stack, i: i >= 3,  # MiniMax-M3, the only one: all but its first three
    "N_x": lambda stack, i: stack.mixer_of(i) in "APRS",
    "N_f": lambda stack, i: stack.ffn_of(i) in "FEB",
    "N_d": lambda stack, i: stack.ffn_of(i) in "FB",
    "N_m": lambda stack, i: stack.ffn_of(i) in "EB",
}
HYBRID = DENSE | {
    **{"recurrent": "rg_lru", "mixer_pattern": "RRAA", "conv_kernel": 4},
    **{"lru_width": 6, "n_lru_blocks": 3, "n_layers": 9, "window": 3, "window_pattern": "LLLG"},
}
SECOND = DENSE | {"n_layers": 7, "d_ff_second": 19, "d_ff_pattern": "MWM"}


def attends(stack: Stack, i: int) -> bool:
    return stack.mixer_of(i) in "APS"


def sees(stack: Stack, i: int) -> str:
    return stack.seen[i % len(stack.seen)]


def one_by_one(spec: ModelSpec, letter: str) -> int:
    stack = spec.last_stack
    return sum(KINDS[letter](stack, i) for i in range(stack.n_layers))


def test_each_letter_counts_what_it_says() -> None:
    specs = [one.spec() for one in entries() if one.sizes is not None]
    specs += [ModelSpec.from_dict(HYBRID), ModelSpec.from_dict(SECOND)]
    met: dict[str, set[int]] = {}
    for spec in specs:
        for letter, number in layers_of(spec).items():
            assert number == one_by_one(spec, letter), (letter, spec.n_layers)
            met.setdefault(letter, set()).add(number)
    assert set(met) == set(KINDS)
