"""FLOPs under the conventions in use: every value by hand, and the published forms as written."""

from __future__ import annotations

from fractions import Fraction

import pytest
from helpers.command_line import refused, run_json

from metacount import InputError, Workload, entry
from metacount.textbook.conventions import amounts, conventions

S = 8192


def values(model: str, workload: Workload) -> dict[str, int]:
    return {c.formula: c.value for c in conventions(entry(model).spec(), workload)}


# LLaMA-3-8B: d 4096, 32 blocks, h 32, h_kv 8, h_d 128, m 14336, V 128256, S 8192
# a block's weights: q, o 4096² each, k, v 4096·1024 each, FFN 3·4096·14336
#   2·16,777,216 + 2·4,194,304 + 176,160,768 = 218,103,808;  × 32 = 6,979,321,856
# a table: 128256·4096 = 525,336,576; two of them, and 65 norms of 4096 = 266,240
#   P = 6,979,321,856 + 1,050,673,152 + 266,240 = 8,030,261,248
# W = 2·(6,979,321,856 + 525,336,576) = 15,009,316,864 per token
# H = 2·525,336,576 = 1,050,673,152
# A = 2 products·2·32 blocks·4096·8192 = 4,294,967,296
# C: of 8192 positions a token sees (8192 + 1)/2 on average: 2·2·32·4096·8193/2 = 2,147,745,792
P, E = 8_030_261_248, 525_336_576
W, H, A, C = 15_009_316_864, 1_050_673_152, 4_294_967_296, 2_147_745_792


def test_the_amounts_by_hand() -> None:
    a = amounts(entry("llama3-8b").spec(), Workload(batch_size=3, seq_len=S))
    assert (a.tokens, a.params, a.looked_up) == (3 * S, P, E)
    assert (a.weights, a.head) == (3 * S * W, 3 * S * H)
    assert (a.pairs, a.kept_pairs) == (3 * S * A, 3 * S * C)


def test_every_convention_by_hand() -> None:
    per_token = {
        "B": 13_958_643_712,  # 2·6,979,321,856
        "B + A/2": 16_106_127_360,
        "2·P": 16_060_522_496,
        "W + A": 19_304_284_160,
        "W + A/2": 17_156_800_512,
        "W + C": 17_157_062_656,
        "(W + A)/2": 9_652_142_080,
        "3·B": 41_875_931_136,  # 41.9
        "6·(P - E)": 45_029_548_032,
        "6·P": 48_181_567_488,
        "3·(W + C)": 51_471_187_968,
        "3·(W + A/2)": 51_470_401_536,
        "6·(P - E) + 3.5·A/2": 52_545_740_800,  # 45,029,548,032 + 7,516,192,768
        "3·W + 3.5·A/2": 52_544_143_360,  # 45,027,950,592 + 7,516,192,768
        "6·P + 3·A/2": 54_624_018_432,
        "3·(W + A)": 57_912_852_480,
        "6·(P - E) + 3·A": 57_914_449_920,
        "3·W + 3.5·A": 60_060_336_128,  # 45,027,950,592 + 15,032,385,536
        "6·P + 3·A": 61_066_469_376,
        "3·(W + A)/2": 28_956_426_240,
        "3·W + 4·A": 62_207_819_776,  # 45,027,950,592 + 17,179,869,184
        "3·W + 6·A": 70_797_754_368,  # 45,027,950,592 + 25,769,803,776
        "3·W + B + 4·A": 76_166_463_488,  # 77,217,136,640 - 1,050,673,152
        "8·P + 4·A": 81_421_959_168,  # 64,242,089,984 + 17,179,869,184: 81.4
    }
    assert values("llama3-8b", Workload(seq_len=S)) == {
        formula: S * value for formula, value in per_token.items()
    }


def test_megatrons_paper_as_it_is_written() -> None:
    # 96·B·S·l·h²·(1 + S/6h + V/16lh), for GPT-3: 96 blocks, h 12288, V 50257, S 2048
    batch, s, n, h, v = 2, 2048, 96, 12288, 50257
    published = 96 * batch * s * n * h**2 * (1 + Fraction(s, 6 * h) + Fraction(v, 16 * n * h))
    found = values("gpt3-175b", Workload(batch_size=batch, seq_len=s))
    assert found["3·W + B + 4·A"] == published
    # Kaplan: N = 12·L·d², C_forward = 2·N + 2·n_layer·n_ctx·d_attn, C = 6·N; no output head
    assert found["B"] == batch * s * 2 * 12 * n * h**2
    assert found["B + A/2"] == batch * s * (2 * 12 * n * h**2 + 2 * n * s * h)
    assert found["3·B"] == batch * s * 6 * 12 * n * h**2


@pytest.mark.parametrize(("heads", "h", "n", "batch"), [(64, 6144, 48, 4), (160, 25600, 128, 512)])
def test_selective_recomputation_as_it_is_written(heads: int, h: int, n: int, batch: int) -> None:
    """Korthikanti et al. 2022, eq. 7 and 8, at sizes of its table 3."""
    sizes = {"d_model": h, "n_heads": heads, "n_kv_heads": heads, "head_dim": h // heads}
    spec = entry("gpt3-175b").spec().replace(**sizes, d_ff=4 * h, n_layers=n, vocab_size=51200)
    listed = conventions(spec, Workload(batch_size=batch, seq_len=2048))
    found = {each.formula: each.value for each in listed}
    for formula, of_attention in (("3·(W + A)", 6), ("3·W + 6·A", 3)):
        published = 1 + Fraction(2048, of_attention * h) + Fraction(51200, 12 * h * n)
        assert found[formula] == 72 * batch * n * 2048 * h**2 * published


def test_the_rows_that_differ_only_with_wide_heads() -> None:
    # LLaMA-3: heads of 128 = 4096/32; Qwen3-0.6B: heads of 128, 1024/16 = 64
    assert "6·P + 3·D" not in values("llama3-8b", Workload())
    found = values("qwen3-0.6b", Workload(seq_len=1024))
    # 28 layers, 16 heads, 596,049,920 parameters, tied
    assert found["6·P + 3·A"] == 1024 * (6 * 596_049_920 + 12 * 28 * 16 * 128 * 1024)
    assert found["6·P + 3·D"] == 1024 * (6 * 596_049_920 + 12 * 28 * 16 * 64 * 1024)


def test_an_encoder_has_no_causal_convention() -> None:
    found = values("bert-base", Workload())
    assert "W + A" in found and "8·P + 4·A" in found
    assert not {"W + C", "W + A/2", "6·P + 3·A/2", "3·W + 3.5·A/2", "B + A/2"} & found.keys()


def test_two_stacks_are_refused() -> None:
    with pytest.raises(InputError):
        amounts(entry("t5-small").spec(), Workload())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "count", "llama3-8b", "--seq", str(S), "--conventions")
    assert data["model"] == "llama3-8b" and data["tokens"] == S
    known = {"P": P, "Q": P, "E": E, "T": E, "W": W, "H": H, "B": W - H, "A": A, "D": A, "C": C}
    assert data["amounts"] == {**known, "L": 0, "R": 0}
    (row,) = (each for each in data["conventions"] if each["formula"] == "8·P + 4·A")
    assert (row["per_token"], row["value"]) == (81_421_959_168, S * 81_421_959_168)
    assert row["sources"][0]["read"] is True and row["users"] and row["says"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("t5-small",), "one stack"),
        (("type:mamba",), ""),
        (("jamba-1.5-mini",), ""),
        (("--folder", "."), "--conventions does not go with --folder"),
    ],
)
def test_what_has_no_conventions(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refused(capsys, "count", *arguments, "--conventions")
