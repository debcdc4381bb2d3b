"""Numbers in the catalog's explanations, computed again from the sizes that the sources state."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor

import pytest

from metacount import catalog
from metacount.formulas import model
from metacount.huggingface.module.model import build_transformers
from metacount.units import parse_count


def said(id: str) -> str:
    explanation = catalog.entry(id).explanation
    assert explanation is not None
    return explanation


# Vaswani et al. 2017, table 3: blocks of each stack, d_model, d_ff, heads, d_k, d_v, and millions
# of parameters as printed; rows (D) and (E) and rows without a number say nothing here
BASE = (6, 512, 2048, 8, 64, 64)
TABLE_3 = [
    (*BASE, 65),
    (2, *BASE[1:], 36),
    (4, *BASE[1:], 50),
    (8, *BASE[1:], 80),
    (6, 256, 2048, 8, 32, 32, 28),
    (6, 1024, 2048, 8, 128, 128, 168),
    (6, 512, 1024, 8, 64, 64, 53),
    (6, 512, 4096, 8, 64, 64, 90),
    (6, 512, 2048, 8, 16, 64, 58),
    (6, 512, 2048, 8, 32, 64, 60),
]
BIG = (6, 1024, 4096, 16, 64, 64, 213)


def without_table(
    n: int, d: int, m: int, h: int, d_k: int, d_v: int, *, bias: bool = False, final: bool = False
) -> int:
    """Blocks of an encoder and a decoder: FFN and norms with biases, attention as told."""
    attention = 2 * d * h * d_k + 2 * d * h * d_v
    attention += bias * (2 * h * d_k + h * d_v + d)
    feed_forward, norm = 2 * d * m + m + d, 2 * d
    blocks = n * (attention + feed_forward + 2 * norm)
    blocks += n * (2 * attention + feed_forward + 3 * norm)
    return blocks + final * 2 * norm


def rows_that_fit(*row: int, bias: bool = False, final: bool = False) -> range:
    """Rows of one shared table with which the count rounds to the printed millions, the last."""
    n, d, m, h, d_k, d_v, millions = row
    rest = without_table(n, d, m, h, d_k, d_v, bias=bias, final=final)
    low = Fraction(millions * 10**6 - 500_000 - rest, d)
    high = Fraction(millions * 10**6 + 500_000 - rest, d)
    return range(ceil(low), floor(high) + 1)


def test_the_hand_written_count_is_ours_where_both_can_say() -> None:
    for id, row in (("transformer-base", BASE), ("transformer-big", BIG[:6])):
        spec = catalog.entry(id).spec()
        assert model.params(spec) == without_table(*row) + 37_000 * spec.d_model


def test_the_rows_of_the_transformers_table() -> None:
    fits = set.intersection(*(set(rows_that_fit(*row)) for row in TABLE_3))
    assert (min(fits), max(fits)) == (41_004, 41_208) and len(fits) == 205
    assert 37_000 not in fits
    for bias, final in ((True, False), (False, True), (True, True)):
        ranges = [set(rows_that_fit(*row, bias=bias, final=final)) for row in TABLE_3]
        other = set.intersection(*ranges)
        assert 0 < min(fits) - min(other) <= 80 and 0 < max(fits) - max(other) <= 80
    assert "would move the fitting rows by at most 80" in str(
        catalog.entry("transformer-base").notes
    )
    base = said("transformer-base")
    assert "one shared table of 41,004 to 41,208 rows, and none of 37,000" in base
    printed = [row[-1] for row in TABLE_3]
    assert f"{', '.join(map(str, printed[:-1]))} and {printed[-1]} million" in base
    big = rows_that_fit(*BIG)
    assert (big[0], big[-1]) == (35_368, 36_344)
    assert fits.isdisjoint(big)
    assert "a table of 35,368 to 36,344 rows: not the stated 37,000" in said("transformer-big")


def rounded(count: int, digits: int) -> int:
    """A count kept to so many digits."""
    step = 10 ** (len(str(count)) - digits)
    return (count + step // 2) // step * step


def test_nominal_sizes() -> None:
    spec = catalog.entry("galactica-120b").spec()
    # 50,000·d + 2,048·d + n·(12·d² + 2·d) + d, d = 10,240
    counts = [10_240 * 52_048 + n * (12 * 10_240**2 + 2 * 10_240) + 10_240 for n in (96, 95)]
    assert counts == [model.params(spec), model.params(spec.replace(n_layers=95))]
    text = said("galactica-120b")
    assert all(f"{n:,}" in text and rounded(n, 4) != 120_000_000_000 for n in counts)
    assert rounded(counts[1], 4) == 120_100_000_000 and "rounds to 120.1B" in text
    count = model.params(catalog.entry("glm-130b").spec())
    assert rounded(count, 2) == 130_000_000_000 and rounded(count, 3) == 129_000_000_000
    assert f"{count:,} is 130B in two digits, 129B in three" in said("glm-130b")


def test_pangus_query_layer() -> None:
    """Whether it is one of the printed layers: among the 32 of 2.6B, besides the others."""

    def pangu(n_blocks: int, d: int) -> int:
        # 40,000 tokens, 1,024 positions and queries, n blocks as GPT-2's, a last norm
        return (40_000 + 2 * 1_024) * d + n_blocks * (12 * d**2 + 13 * d) + 2 * d

    text = said("pangu-alpha-207b")
    for n_layers, d, billions, among in ((32, 2_560, "2.6", True), (40, 5_120, "13.1", False)):
        counts = [pangu(n, d) for n in (n_layers, n_layers + 1)]
        meets = [f"{round(Fraction(count, 10**8)) / 10:.1f}" == billions for count in counts]
        assert meets == [among, not among]
        assert all(f"{n:,}" in text for n in counts) and f"({n_layers} layers of {d:,})" in text
    spec = catalog.entry("pangu-alpha-207b").spec()
    own, besides = pangu(64, 16_384), pangu(65, 16_384)
    assert own == model.params(spec) and besides == model.params(spec.replace(n_layers=65))
    # 207.0B is printed: 206.9 is near it, 210.1 is not
    assert abs(own - 207_000_000_000) < 150_000_000 < 3_000_000_000 < besides - 207_000_000_000
    assert f"gives {own:,}; besides them, {besides:,}" in text


def test_nothing_is_left_unexplained_without_a_word() -> None:
    unexplained = [
        entry.id
        for entry in catalog.entries()
        if entry.sizes is not None
        and catalog.compare_published(entry, int(model.params(entry.spec()))).explanation
        == catalog.UNEXPLAINED
    ]
    assert unexplained == []


# The vision tower is timm's, which is not installed here: MobileNetV5-300M in timm 1.0.31.
TIMM = 294_126_912
EMBEDDERS = (128 * 2048 + 2 * 2048 + 2048**2) + (128 * 1536 + 2 * 1536 + 1536 * 2048)


# Of transformers' text config, whose defaults are E4B's, what E2B has otherwise.
E2B = {"num_hidden_layers": 30, "intermediate_size": 8192, "num_kv_shared_layers": 10}


@pytest.mark.parametrize(("id", "other", "n_reusing"), [("e2b", E2B, 10), ("e4b", {}, 15)])
def test_gemma_3n_is_its_text_two_towers_and_what_its_class_leaves_out(
    id: str, other: dict[str, int], n_reusing: int
) -> None:
    entry = catalog.entry(f"gemma-3n-{id}-text")
    assert entry.stored_checkpoint is not None
    text, audio = (
        build_transformers(source)[0]
        for source in ({"model_type": "gemma3n_text", **other}, "gemma3n_audio")
    )
    own, audio_params = (sum(p.numel() for p in one.parameters()) for one in (text, audio))
    towers = TIMM + audio_params + EMBEDDERS
    unused = n_reusing * (2 * 2048 * 512 + 256)  # k_proj, v_proj and k_norm
    total = entry.stored_checkpoint.total
    assert total == own + towers + unused and entry.stored_checkpoint.extra == towers + unused
    assert f"{total:,} = {own:,} here + {towers:,} of" in said(entry.id)
    assert f"{unused:,} of the {n_reusing} layers" in said(entry.id)
    assert rounded(total, 1) == int(f"{entry.published.label}"[0]) * 10**9
    # "effective": without the token table and the embeddings of each layer, as stored
    n_layers = other.get("num_hidden_layers", 35)
    tables = (262_400 * 2048, 262_144 * 256 * n_layers)
    effective = own + unused - sum(tables)
    said_so = f"{effective:,} = {own:,} + {unused:,} of those layers - {tables[0]:,} of the token"
    assert f"{said_so} table - {tables[1]:,} of" in said(entry.id)
    assert own == model.params(entry.spec())
    value, half = parse_count(entry.published.active_label or "")
    assert abs(effective - value) <= half
