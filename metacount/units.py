"""The only place where a number becomes text, and a published label a number.

Every rounding is done on integers, half to even, so no count passes through a float.
Counts and FLOPs use decimal prefixes (B is 10^9); bytes use binary ones and say so (GiB is 2^30).
Below them is the field's short notation for parts of a model: GQA 32/8, silu(gate) · up.
"""

from __future__ import annotations

import operator

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_UNITS = ("", "K", "M", "B", "T")
FLOP_UNITS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP", "YFLOP")
MAC_UNITS = tuple(unit.replace("FLOP", "MAC") for unit in FLOP_UNITS)
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

FEWEST_DIGITS = 3  # significant digits of a shortened count: 6.74B, 67.4B, 674B
LONGEST_LABEL = 40  # characters; a longer label is not a count


def exact(n: int) -> str:
    """Write every digit, in groups of three.

    >>> exact(6738415616)
    '6,738,415,616'
    """
    return f"{operator.index(n):,}"


def signed(n: int) -> str:
    """Write every digit, with a sign.

    >>> signed(2048), signed(-2048), signed(0)
    ('+2,048', '-2,048', '0')
    """
    n = operator.index(n)
    return f"{n:+,}" if n else "0"


def short(n: int) -> str:
    """Write a count to three significant digits: K, M, B and T are powers of 1000.

    >>> [short(n) for n in (0, 999, 1000, 6738415616, 67425001472, 671026404352, 1571308972448)]
    ['0', '999', '1.00K', '6.74B', '67.4B', '671B', '1.57T']
    >>> short(999_999), short(999_499_999)  # a carry moves on to the next unit
    ('1.00M', '999M')
    """
    return _scaled(operator.index(n), COUNT_UNITS, "")


def flops(n: int) -> str:
    """Write FLOPs to three significant digits; a TFLOP is 10^12 operations, not a rate.

    >>> flops(0), flops(512), flops(1_700_001_742_848)
    ('0 FLOP', '512 FLOP', '1.70 TFLOP')
    """
    return _scaled(operator.index(n), FLOP_UNITS, " ")


def macs(n: int) -> str:
    """Write multiply-adds to three significant digits, with FLOPs' prefixes.

    >>> macs(512), macs(251_256_176_640), macs(5_259_000_000_000_000)
    ('512 MAC', '251 GMAC', '5.26 PMAC')
    """
    return _scaled(operator.index(n), MAC_UNITS, " ")


def gib(n_bytes: int) -> str:
    """Write bytes in binary units with two decimals:
    a KiB is 2^10, a MiB 2^20, a GiB 2^30, a TiB 2^40.

    >>> gib(0), gib(1023), gib(1024), gib(13_476_831_232), gib(2**40)
    ('0 B', '1023 B', '1.00 KiB', '12.55 GiB', '1.00 TiB')
    >>> gib(2**20 - 1)  # a carry moves on to the next unit
    '1.00 MiB'
    """
    n = operator.index(n_bytes)
    size = abs(n)
    if size < 1024:
        return f"{n} B"
    power = 1
    # rounded to hundredths, 1024.00 of one unit is 1.00 of the next
    while power < len(BYTE_UNITS) - 1 and _nearest(size * 100, 1024**power) >= 1024 * 100:
        power += 1
    text = _decimal(_nearest(size * 100, 1024**power), 2)
    return f"{'-' if n < 0 else ''}{text} {BYTE_UNITS[power]}"


def share(part: int, total: int) -> str:
    """Write a part of a whole in percent, one decimal;
    nothing is 0 % and all is 100 %, and no other.

    >>> share(2, 3), share(0, 7), share(7, 7), share(0, 0)
    ('66.7 %', '0 %', '100 %', 'n/a')
    >>> share(1, 10_000), share(9_999, 10_000)
    ('<0.1 %', '>99.9 %')
    """
    part, total = operator.index(part), operator.index(total)
    if total == 0:
        return "n/a"
    if part in (0, total):
        return "100 %" if part else "0 %"
    text = _percent(part, total, 1)
    if text == "0.0 %":
        return "<0.1 %" if part > 0 else ">-0.1 %"
    if text == "100.0 %":
        return ">99.9 %" if part < total else ">100 %"
    return text


def relative(difference: int, total: int) -> str:
    """Write a signed difference in percent of a whole, at least two significant digits.

    >>> relative(619268202496 - 600 * 10**9, 600 * 10**9)
    '+3.2 %'
    >>> relative(-2_193_408, 540_350_000_000), relative(0, 5), relative(1, 0)
    ('-0.00041 %', '0 %', 'n/a')
    """
    difference, total = operator.index(difference), operator.index(total)
    if total == 0:
        return "n/a"
    if difference == 0:
        return "0 %"
    places = 0
    # two digits are 10 or more of the last decimal place
    while abs(difference) * 100 * 10**places // abs(total) < 10:
        places += 1
    text = _percent(difference, total, places)
    return text if text.startswith("-") else f"+{text}"


def parse_count(text: str) -> tuple[int, int]:
    """Read a published label as an exact value and half of its last digit's unit.

    A plain integer means itself. K, M, B and T are powers of 1000; commas group digits.

    >>> parse_count("6.7B"), parse_count("174,600M"), parse_count("70B")
    ((6700000000, 50000000), (174600000000, 500000), (70000000000, 500000000))
    >>> parse_count("176,247,271,424")
    (176247271424, 0)
    >>> parse_count("about 7B")
    Traceback (most recent call last):
    ValueError: a count is digits with an optional K, M, B or T, for example 6.7B: got 'about 7B'
    """
    problem = f"a count is digits with an optional K, M, B or T, for example 6.7B: got {text!r}"
    if len(text) > LONGEST_LABEL:
        raise ValueError(f"a count is at most {LONGEST_LABEL} characters: got {len(text)}")
    digits, power = text, 0
    if text[-1:] in COUNT_UNITS[1:]:
        digits, power = text[:-1], COUNT_UNITS.index(text[-1])
    integer, dot, decimals = digits.partition(".")
    groups = integer.split(",")
    grouped = all(len(group) == 3 for group in groups[1:]) and groups[0] != ""
    if len(groups) > 1:
        grouped = grouped and len(groups[0]) <= 3
    plain = "".join(groups) + decimals
    if not grouped or not plain.isascii() or not plain.isdigit() or (dot and not decimals):
        raise ValueError(problem)
    unit = 1000**power
    if unit % 10 ** len(decimals):
        raise ValueError(f"a count has no fraction of one: got {text!r}")
    last_digit = unit // 10 ** len(decimals)
    return int(plain) * last_digit, last_digit // 2 if power else 0


def _nearest(a: int, b: int) -> int:
    """Divide a by b > 0, rounded half to even."""
    quotient, rest = divmod(a, b)
    if 2 * rest > b or (2 * rest == b and quotient % 2):
        quotient += 1
    return quotient


def _decimal(n: int, places: int) -> str:
    """Write n / 10^places, exactly."""
    if places == 0:
        return str(n)
    integer, rest = divmod(n, 10**places)
    return f"{integer}.{rest:0{places}d}"


def _scaled(n: int, units: tuple[str, ...], gap: str) -> str:
    size = abs(n)
    if size < 1000:
        return f"{n}{gap}{units[0]}"
    for power in range(1, len(units)):
        for places in range(FEWEST_DIGITS - 1, -1, -1):
            digits = _nearest(size * 10**places, 1000**power)
            if digits < 10**FEWEST_DIGITS or (places == 0 and power == len(units) - 1):
                return f"{'-' if n < 0 else ''}{_decimal(digits, places)}{gap}{units[power]}"
    raise AssertionError("the last unit takes every size")  # pragma: no cover


def _percent(part: int, total: int, places: int) -> str:
    digits = _nearest(abs(part) * 100 * 10**places, abs(total))
    sign = "-" if digits and (part < 0) != (total < 0) else ""
    return f"{sign}{_decimal(digits, places)} %"


def heads(n_heads: int, n_kv_heads: int) -> str:
    """Name attention heads by how many share a key/value head.

    >>> heads(32, 32), heads(32, 8), heads(71, 1)
    ('MHA 32', 'GQA 32/8', 'MQA 71/1')
    """
    if n_kv_heads == n_heads:
        return f"MHA {n_heads}"
    return f"{'MQA' if n_kv_heads == 1 else 'GQA'} {n_heads}/{n_kv_heads}"


def latent_heads(n_heads: int, latent: int, rotated: int) -> str:
    """Name heads over one latent and one rotated key.

    >>> latent_heads(128, 512, 64)
    'MLA 128, latent 512 + 64'
    """
    return f"MLA {n_heads}, latent {latent} + {rotated}"


def activated(activation: str, swish_beta: float, *, gated: bool) -> str:
    """Write what stands between the matrices of a feed-forward.

    >>> activated("silu", 1.0, gated=True), activated("gelu", 1.0, gated=False)
    ('silu(gate) · up', 'gelu(up)')
    """
    if activation == "clamped_swiglu":
        return "clamped silu(gate) · (up + 1)"
    scaled = activation == "silu" and swish_beta != 1.0
    name = f"swish_{swish_beta:g}" if scaled else activation
    if not gated:
        return f"{name}(up)"
    return "gate · up" if name == "identity" else f"{name}(gate) · up"


def factor(number: float) -> str:
    """Write a factor as it stands before what it multiplies; nothing for 1.

    >>> factor(0.22), factor(1.0)
    ('0.22·', '')
    """
    return "" if number == 1.0 else f"{number:.4g}·"


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers in order, neighbours together.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
