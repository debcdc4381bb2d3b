"""Forms at other sizes, against readings and measurements that are made up here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy

from metacount.tracing.forms import OtherSizes, Reading, solved_constants
from metacount.tracing.layers import CodeForm, CodePart, FormDiffers
from metacount.tracing.symbols import symbol

EXPERTS, width, chosen, LAYERS_ = (
    symbol(name) for name in ("EXPERTS", "width", "chosen", "LAYERS_")
)
NUMBERS = {EXPERTS: 8, width: 64, chosen: 2, LAYERS_: 20}


def reading(expr: Any, *domain: Any, number: int = 8) -> Reading:
    part = CodePart(role="moe", expr=expr, layers=None, where="")
    return Reading(parts=(part,), domain=(sympy.Eq(EXPERTS, number, evaluate=False), *domain))


def read_as(make: Callable[[int], Reading]) -> Callable[[dict[str, int]], Reading]:
    return lambda change: make(change["EXPERTS"])


def test_a_polynomial_of_degree_two_is_found() -> None:
    def at(n: int) -> Reading:
        return reading(3 * n * n * width + 5 * n * chosen + 7, chosen <= n, number=n)

    found = solved_constants(at(8), {"EXPERTS"}, NUMBERS, read_as(at))
    assert (
        sympy.expand(found.parts[0].expr - (3 * EXPERTS**2 * width + 5 * EXPERTS * chosen + 7)) == 0
    )
    assert found.domain == (chosen <= EXPERTS,)
    assert found.solved_for == (("EXPERTS", (8, 9, 16, 24, 32)),)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: reading(width * n**3, number=n),  # of a higher degree
        lambda n: reading(width * 2**n, number=n),
        lambda n: reading(width * n, width >= (5 if n == 8 else 6), number=n),  # of another domain
        lambda n: reading(width * (n if n != 24 else n + 1), number=n),
    ],
)
def test_what_is_none_stays_a_number(make: Callable[[int], Reading]) -> None:
    here = make(8)
    assert solved_constants(here, {"EXPERTS"}, NUMBERS, read_as(make)) is here


W, X, Y, Z, N, B, S, T, H, K, U = map(symbol, "wxyznBSThku")


def made(
    by_role: dict[str, Any],
    sizes: dict[str, int],
    domain: tuple[Any, ...] = (),
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
