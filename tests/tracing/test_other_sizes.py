"""Forms at other sizes, against measurements that are made up here; what agrees, what is inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
from helpers.release import ONLY

from metacount.spec import Workload
from metacount.tracing.domain import asked_of, in_words
from metacount.tracing.forms import OtherSizes, Tracer
from metacount.tracing.layers import CodeForm, FormDiffers
from metacount.tracing.symbols import Sizes, divides, symbol, unread

SIZES = {"w": 16, "x": 6, "y": 6, "z": 10}
W, X, Y, Z, N, B, S, T, H, K, U = map(symbol, "wxyznBSThku")


def made(
    by_role: dict[str, Any],
    sizes: dict[str, int],
    domain: tuple[Any, ...] = (),
    split: str = "role",
    quantity: str = "params",
) -> CodeForm:
    """A form of sizes, at 1 sequence of 48 tokens."""
    numbers = {**sizes, "B": 1, "S": 48, "T": 48}
    return CodeForm(
        quantity=quantity,
        parts=(),
        by_role=by_role,
        numbers=numbers,
        value=0,
        domain=domain,
        how="traced",
        source="",
        notes=(),
        split=split,
        every_number={symbol(name): number for name, number in numbers.items()},
    )


class Measured:
    """A model that is measured: `amounts` gives roles from numbers, or None; `seen` is asked of."""

    def __init__(
        self,
        own: dict[str, int],
        amounts: Callable[[dict[str, int]], dict[str, int] | None],
        most_changes: int = 99,
    ) -> None:
        self.own, self.amounts, self.most = {**own, "B": 1, "S": 48}, amounts, most_changes
        self.seen: list[dict[str, int]] = []
        self.accepted: list[dict[str, int]] = []

    def __call__(self, change: dict[str, int]) -> tuple[dict[str, int], dict[str, int]] | None:
        self.seen.append(dict(change))
        found = self.amounts({**self.own, **change}) if len(change) <= self.most else None
        if found is None:
            return None
        self.accepted.append(dict(change))
        return dict(change), found


def fixed(letter: Any, number: int) -> Any:
    return sympy.Eq(letter, number, evaluate=False)


def test_a_right_form_is_confirmed_three_times() -> None:
    own = {"x": 6}
    measured = Measured(own, lambda n: {"a": 7 * n["x"] ** 2})
    found = OtherSizes(made({"a": 7 * X**2}, own), {"x"}, set(), set(), measured)
    assert (found.confirmed, found.stuck, found.untried) == (3, (), [])
    assert len(measured.seen) == 3
    assert all(change["x"] != 6 for change in measured.seen)


def test_every_letter_of_a_right_form_is_changed() -> None:
    # one at a time, where no model can be built with more
    measured = Measured(SIZES, lambda n: {"a": n["w"] * n["x"] + n["y"] * n["z"]}, most_changes=1)
    found = OtherSizes(made({"a": W * X + Y * Z}, SIZES), set(SIZES), set(), set(), measured)
    assert (found.stuck, found.untried) == ((), [])
    assert {name for change in measured.accepted for name in change} == set(SIZES)
    assert found.confirmed == len(measured.accepted) >= 4


@pytest.mark.parametrize("quantity", ["params", "active_params", "kv_cache_bytes"])
def test_a_size_that_is_left_out_stays_what_it_is(quantity: str) -> None:
    own = {"x": 6, "z": 10}
    measured = Measured(own, lambda n: {"a": n["x"] * n["z"]})
    form = made({"a": 10 * X}, own, quantity=quantity)
    found = OtherSizes(form, {"x", "z"}, set(), set(), measured)
    assert found.stuck == (fixed(Z, 10),)  # x is not blamed, though it changed with z
    assert found.confirmed >= 3
    assert found.untried == []
    assert all("z" not in change for change in measured.seen[-3:])


@pytest.mark.parametrize("quantity", ["params", "matmul_flops", "kv_cache_bytes", "state_bytes"])
def test_a_size_that_alone_is_wrong_stays_what_it_is(quantity: str) -> None:
    # many others, so that three models may be right before y has been changed
    own = {**SIZES, **{f"f{i}": 8 for i in range(8)}}
    measured = Measured(own, lambda n: {"a": n["w"] * n["x"] * 6 * n["z"]}, most_changes=1)
    form = made({"a": W * X * Y * Z}, own, quantity=quantity)
    found = OtherSizes(form, set(own), set(), set(), measured)
    assert found.stuck == (fixed(Y, 6),)
    assert found.untried == []


def test_sizes_that_were_only_equal_are_blamed() -> None:
    own = {"x": 6, "y": 6, "z": 10}
    measured = Measured(own, lambda n: {"a": n["x"] * n["y"] * n["z"]})
    found = OtherSizes(made({"a": X**2 * Z}, own), set(own), set(), set(), measured)
    assert set(found.stuck) == {fixed(X, 6), fixed(Y, 6)}
    assert found.confirmed >= 3
    assert all(set(change) == {"z"} for change in measured.seen[-3:])


@pytest.mark.parametrize("name", ["B", "S", "S_e"])
def test_a_form_that_is_wrong_for_another_run_is_refused(name: str) -> None:
    own = {"x": 6, "S_e": 48}
    at_48 = {"B": 1, "S": 48, "S_e": 48}[name]
    measured = Measured(own, lambda n: {"a": n["x"] * n["B"] + n[name] - at_48})
    form = made({"a": X * B}, own, quantity="matmul_flops")
    with pytest.raises(FormDiffers, match=f"matmul_flops: wrong for another {name}$"):
        OtherSizes(form, {"x"}, set(), {"B", "S", "S_e"}, measured)


def test_a_model_that_can_be_built_in_no_other_way() -> None:
    own = {"x": 6, "y": 6}
    measured = Measured(own, lambda n: None)
    form = made({"a": X * Y, "b": T}, own)
    found = OtherSizes(form, {"x", "y"}, set(), {"B", "S"}, measured)
    # T is S of the run; B is not in the form, but nobody has seen that it need not be
    assert (found.confirmed, found.stuck, found.untried) == (0, (), ["B", "S", "x", "y"])
    # 24 attempts, and 4 for each of the 4 letters
    assert 3 < len(measured.seen) <= 24 + 4 * 4


def test_what_is_drawn_is_inside_the_domain() -> None:
    own = {"h": 8, "k": 4, "w": 89, "u": 5, "x": 6}
    domain = (
        divides(K, H),
        sympy.Eq(W, 11 * H + 1, evaluate=False),
        sympy.Ge(X, K),
        unread(sympy.Symbol("Odd(u)"), U),
    )
    # refused, so that many are asked for
    measured = Measured(own, lambda n: None)
    form = made({"a": H * K * W * X}, own, domain)
    OtherSizes(form, set(own), set(), set(), measured)
    changed = {name for change in measured.seen for name in change}
    assert {"h", "k", "w", "x"} <= changed
    for change in measured.seen:
        now = {**own, **change}
        assert now["h"] % now["k"] == 0
        assert now["w"] == 11 * now["h"] + 1  # the one follows from the other
        assert now["x"] >= now["k"]
        assert "u" not in change
        assert all(now[name] != own[name] for name in change)


def test_by_operator_the_sum_is_compared() -> None:
    own = {"x": 6, "z": 10}
    measured = Measured(own, lambda n: {"mm": n["x"] + n["z"]})
    forms = {"mm": X, "bmm": Z}
    summed = OtherSizes(made(forms, own, split="operator"), set(own), set(), set(), measured)
    assert summed.confirmed >= 3
    assert summed.stuck == ()
    apart = OtherSizes(made(forms, own), set(own), set(), set(), measured)
    assert apart.confirmed == 0
    assert set(apart.stuck) == {fixed(X, 6), fixed(Z, 10)}


@ONLY
def test_a_config_that_copies_a_number_for_itself() -> None:
    # dots3's config gives the layers that slide the rank of the others where they have none
    form = Tracer({"model_type": "dots3_note_text"}, Workload(seq_len=48)).form("params")
    assert "q_lora_rank = 1024" in [in_words(c, str) for c in form.domain]


def asked(*questions: Callable[[Any, Any], bool]) -> list[str]:
    """What is left of questions about two sizes, x = 12 and y = 5; each must be answered yes."""
    sizes = Sizes()
    x, y = sizes.new("x", 12), sizes.new("y", 5)
    for question in questions:
        assert question(x, y)
    return [in_words(c, str) for c in asked_of(sizes).conditions]


def test_of_two_inequalities_the_stronger_stays() -> None:
    assert asked(lambda x, y: x >= y + 2, lambda x, y: x >= y) == ["x ≥ y + 2"]
    assert asked(lambda x, y: x >= y, lambda x, y: x >= y + 2) == ["x ≥ y + 2"]
    # between whole numbers x > y + 1 is x ≥ y + 2
    assert asked(lambda x, y: x >= y + 1, lambda x, y: x > y + 1) == ["x > y + 1"]
    assert asked(lambda x, y: x > y + 1, lambda x, y: x >= y + 2) == ["x > y + 1"]
    assert asked(lambda x, y: x <= y + 9, lambda x, y: x <= y + 8) == ["x ≤ y + 8"]
    assert asked(lambda x, y: x <= y + 8, lambda x, y: x < y + 8) == ["x < y + 8"]
