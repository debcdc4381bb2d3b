"""Numbers to text and back, by hand and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metacount import units

# What is written, of a function of `units`; halves go to the even neighbour.
WRITTEN = {
    "short": {
        (-5,): "-5",
        (999,): "999",
        (1_005,): "1.00K",
        (1_015,): "1.02K",
        (999_499,): "999K",
        (999_500,): "1.00M",  # 999.5 rounds to 1000, which is the next unit
        (124_439_808,): "124M",
        (-6_738_415_616,): "-6.74B",
        (12_345 * 10**12,): "12345T",  # no unit beyond T
    },
    "gib": {
        (1536,): "1.50 KiB",
        (2**20 - 6,): "1023.99 KiB",
        (-(2**30),): "-1.00 GiB",
        (2**20 - 5,): "1.00 MiB",  # 1023.995 KiB rounds to 1024.00
        (5000 * 2**40,): "5000.00 TiB",  # no unit beyond TiB
    },
    "share": {
        (1, 2000): "<0.1 %",  # 0.05 would be nothing
        (3, 2000): "0.2 %",
        (-1, 3): "-33.3 %",
        (-1, 10**6): ">-0.1 %",
        (1, 0): "n/a",
        (10**6 - 1, 10**6): ">99.9 %",
        (10**6 + 1, 10**6): ">100 %",
        (10**6, 10**6): "100 %",
        (0, 10**6): "0 %",
        (4_328_521_728, 6_738_415_616): "64.2 %",
    },
    "relative": {
        (1, 2): "+50 %",
        (-7, 3): "-233 %",
        (1, 10): "+10 %",
        (99, 1000): "+9.9 %",
        (-1, 10**9): "-0.00000010 %",
    },
    "exact": {(-1234567,): "-1,234,567"},
    "signed": {(0,): "0", (1234,): "+1,234", (-1,): "-1"},
    "flops": {(999,): "999 FLOP", (2 * 10**27,): "2000 YFLOP"},
    "parse_count": {
        ("13.0B",): (13_000_000_000, 50_000_000),
        ("1571B",): (1_571_000_000_000, 500_000_000),
        ("1.6T",): (1_600_000_000_000, 50_000_000_000),
        ("5K",): (5_000, 500),
        ("1.234K",): (1_234, 0),
        ("11,846,072,320",): (11_846_072_320, 0),
        ("7",): (7, 0),
    },
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(name: str) -> None:
    for given_, text in WRITTEN[name].items():
        assert getattr(units, name)(*given_) == text, given_


@pytest.mark.parametrize("number", [1.5, "7", None])
@pytest.mark.parametrize("show", [units.exact, units.signed, units.short, units.flops, units.gib])
def test_only_whole_numbers_become_text(show, number) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match="integer"):
        show(number)


NO_COUNTS = ("", "B", "7 B", "7b", "-7B", "7.B", ".B", "7.1.2B", "1,23B", "12,3456", ",123")
NO_COUNTS += ("1,234,", "²B", "٣B", "7B (blog)", "0x10")
REFUSED = dict.fromkeys(NO_COUNTS, "a count is digits")
REFUSED |= {"1.2345K": "fraction", "6.7": "fraction", "9" * 41: "at most 40 characters"}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        units.parse_count(text)


@given(st.integers(0, 10**15))
def test_a_shortened_count_rounds_back_to_its_label(n: int) -> None:
    value, half = units.parse_count(units.short(n))
    assert abs(n - value) <= half


@given(st.integers(0, 10**15))
def test_an_exact_count_reads_back(n: int) -> None:
    assert units.parse_count(units.exact(n)) == (n, 0)


@given(st.integers(0, 2**60))
def test_bytes_are_within_half_a_hundredth_of_their_unit(n: int) -> None:
    number, unit = units.gib(n).split()
    whole, _, decimals = number.partition(".")
    size = 1024 ** units.BYTE_UNITS.index(unit)
    assert abs(n * 100 - int(whole + decimals.ljust(2, "0")) * size) * 2 <= size
    assert int(whole) < 1024 or unit == "TiB"


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=8))
def test_shares_add_up(parts: list[int]) -> None:
    shown = [units.share(p, sum(parts)).removesuffix(" %") for p in parts]
    rounded = {"<0.1": "0.0", ">99.9": "100.0", "100": "100.0"}
    tenths = [int(rounded.get(text, text).replace(".", "")) for text in shown]
    assert abs(sum(tenths) - 1000) * 2 <= len(parts)
