"""FLOPs under the conventions in use: every value by hand, and the published forms as written."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import pytest

from metacount import InputError, Workload, entry, find_model
from metacount.cli import main
from metacount.conventions import amounts, conventions
from metacount.views.conventions import conventions_text, giga

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
        "2·(P - E)": 15_009_849_344,
        "2·P": 16_060_522_496,
        "W + A": 19_304_284_160,
        "W + A/2": 17_156_800_512,
        "W + C": 17_157_062_656,
        "(W + A) / 2": 9_652_142_080,
        "6·(P - E)": 45_029_548_032,  # 45.0
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
        "3·(W + A) / 2": 28_956_426_240,
        "3·W + 4·A": 62_207_819_776,  # 45,027,950,592 + 17,179,869,184
        "4·(W - H + A) + 3·H": 76_166_463_488,  # 77,217,136,640 - 1,050,673,152
        "4·(W + A)": 77_217_136_640,  # 77.2
    }
    assert values("llama3-8b", Workload(seq_len=S)) == {
        formula: S * value for formula, value in per_token.items()
    }


def test_the_range_of_training() -> None:
    found = conventions(entry("llama3-8b").spec(), Workload(seq_len=S))
    training = [c for c in found if c.passes.startswith("training") and c.unit == "FLOP"]
    per_token = sorted(c.per_token(S) for c in training)
    assert [giga(n, "FLOP") for n in (per_token[0], per_token[-1])] == ["45.0 GFLOP", "77.2 GFLOP"]


def test_megatrons_formula_as_it_is_written() -> None:
    # 96·B·S·l·h²·(1 + S/6h + V/16lh), for GPT-3: 96 blocks, h 12288, V 50257, S 2048
    batch, s, n, h, v = 2, 2048, 96, 12288, 50257
    published = 96 * batch * s * n * h**2 * (1 + Fraction(s, 6 * h) + Fraction(v, 16 * n * h))
    found = values("gpt3-175b", Workload(batch_size=batch, seq_len=s))
    assert found["4·(W - H + A) + 3·H"] == published
    # without recomputation: 72·B·L·s·h²·(1 + s/6h + v/12hL)
    model_flops = 72 * batch * n * s * h**2 * (1 + Fraction(s, 6 * h) + Fraction(v, 12 * h * n))
    assert found["3·(W + A)"] == model_flops


def test_palms_and_llmcs_formulas_as_they_are_written() -> None:
    # GPT-2 small: N 124,439,808, 12 layers, 12 heads of 64, C 768, T 1024
    found = values("gpt2", Workload(seq_len=1024))
    assert found["6·P + 3·A"] == 1024 * (6 * 124_439_808 + 12 * 12 * 12 * 64 * 1024)
    assert found["6·P + 3·A/2"] == 1024 * (6 * 124_439_808 + 6 * 12 * 768 * 1024)


def test_tables_that_are_looked_up() -> None:
    # GPT-2: (50257 + 1024)·768; BERT: (30522 + 2 + 512)·768; a tied table counts as looked up
    assert amounts(entry("gpt2").spec(), Workload()).looked_up == 39_383_808
    assert amounts(entry("bert-base").spec(), Workload()).looked_up == 23_835_648


def test_active_parameters_of_experts() -> None:
    # Mixtral: 12,879,925,248 of 46,702,792,704
    a = amounts(entry("mixtral-8x7b").spec(), Workload())
    assert a.params == 12_879_925_248


def test_an_encoder_has_no_causal_convention() -> None:
    found = values("bert-base", Workload())
    assert "W + A" in found and "4·(W + A)" in found
    assert not {"W + C", "W + A/2", "6·P + 3·A/2", "3·W + 3.5·A/2"} & found.keys()


def test_a_window_is_seen_by_the_exact_count_only() -> None:
    # Mistral 7B: all windowed at 4096 of 8192 positions, 25,167,872 pairs of 67,108,864
    a = amounts(entry("mistral-7b").spec(), Workload(seq_len=S))
    assert a.kept_pairs * 67_108_864 == a.pairs * 25_167_872


def test_two_stacks_are_refused() -> None:
    with pytest.raises(InputError, match="are of a model with one stack"):
        amounts(entry("t5-small").spec(), Workload())


def test_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, 100, 180):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["count", "llama3-8b", "--seq", str(S), "--conventions"]) == 0
        out = capsys.readouterr().out
        said = " ".join(out.split())
        assert "range from 45.0, 6·(P - E), to 77.2, 4·(W + A), and nobody is wrong" in said
        assert "Kaplan et al. 2020" in said and "torchtitan" in said
        assert max(map(len, out.splitlines())) <= width
        assert ("workload" in out) == (width == 180)
    assert "tied" in conventions_text(find_model("gpt2"), Workload())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "llama3-8b", "--seq", str(S), "--conventions", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["model"] == "llama3-8b" and data["tokens"] == S
    assert data["amounts"] == {"P": P, "E": E, "W": W, "H": H, "A": A, "C": C}
    by_formula = {c["formula"]: c for c in data["conventions"]}
    assert by_formula["4·(W + A)"]["per_token"] == 77_217_136_640
    assert by_formula["4·(W + A)"]["value"] == S * 77_217_136_640
    assert all(c["users"] and c["says"] for c in data["conventions"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("t5-small",), "one stack"),
        (("type:mamba",), "has no formula"),
        (("--folder", "."), "takes MODEL, not --folder"),
    ],
)
def test_what_has_no_conventions(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(["count", *arguments, "--conventions"]) == 2
    assert said in capsys.readouterr().err


def test_it_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom metacount.cli import main\n"
        "assert main(['count', 'llama-7b', '--conventions']) == 0\n"
        "assert not {'torch', 'numpy', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_giga() -> None:
    assert giga(Fraction(219_770_000_000), "FLOP") == "219.8 GFLOP"
    assert giga(Fraction(9_652_142_080), "MAC") == "9.65 GMAC"
    assert giga(Fraction(1, 3), "FLOP") == "0.000000000 GFLOP"
    assert giga(Fraction(0), "FLOP") == "0.0 GFLOP"
