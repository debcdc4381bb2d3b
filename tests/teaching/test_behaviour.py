"""Claims about behaviour: beside plain torch, transformers, arithmetic, other modules."""

from __future__ import annotations

import math
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from helpers.changed_claims import ALL, changed, verdict_on
from helpers.release import daily, one_in
from torch import Tensor

from metacount.cli.claims import LETTER, verdict_report, verdicts_report
from metacount.cli.report import in_text
from metacount.spec.legend import MODEL_TERMS
from metacount.spec.model import FIELDS
from metacount.teaching.claims import TOPICS, judge_claim, judges, needs_torch
from metacount.teaching.experiments import ffn, layers, moe
from metacount.teaching.texts import RIGHT, VERDICTS, WRONG, Verdict, chinese

D, E, N = 5, 4, 3


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_balancing_loss_of_transformers_is_the_stated_one_for_every_k() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = values(12, E, seed=31)
    for k in (1, 2):
        probs = logits.softmax(-1)
        chosen = probs.topk(k).indices
        share = F.one_hot(chosen, E).double().sum(1).mean(0)  # of tokens: adds up to k
        stated = E * (probs.mean(0) * share).sum()
        theirs = load_balancing_loss_func((logits,), num_experts=E, top_k=k)
        assert float(theirs) == pytest.approx(float(stated), rel=1e-5)  # theirs is in float32


def test_layer_norm_multiplies_by_gamma_and_adds_beta() -> None:
    # two values, 1 and 3: mean 2, deviation 1, so that they become -1 and 1
    norm = torch.nn.LayerNorm(2, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([5.0, 7.0]))
        norm.bias.copy_(torch.tensor([11.0, 13.0]))
        y = norm(torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert y.tolist() == [-1 * 5 + 11, 1 * 7 + 13]
    judged = verdict_on("layernorm-gamma-beta")
    assert judged.verdict == WRONG
    # with β = 0 and γ = 1 at the start, x·β + γ is 1 whatever x is
    assert "A new module would give 1 for every input." in judged.reason


def test_gelu_and_its_approximation() -> None:
    x = torch.linspace(-6, 6, 12001, dtype=torch.float64)
    exact = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    tanh = x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    assert f"{float((exact - tanh).abs().max()):.3e}" == "4.732e-04"
    assert any("4.732e-04" in line for line in verdict_on("gelu-erf").computation)


def test_sinusoids_by_hand() -> None:
    # columns 2 and 3 have 10000^(2/16) as their wavelength over 2π
    lines = verdict_on("sinusoidal-formula").computation
    for at in (0, 1, 50, 1000):
        angles = (at, at / 10000 ** (2 / 16))
        told = ", ".join(f"{wave(angle):.6f}" for angle in angles for wave in (math.sin, math.cos))
        assert f"position {at}, columns 0 to 3: {told}" in lines


@pytest.mark.parametrize("id", [id for id, claim in ALL.items() if needs_torch(claim)])
def test_no_claim_draws_from_the_readers_generator(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.random.get_rng_state()
    for name in ("manual_seed", "set_rng_state", "seed"):
        monkeypatch.setattr(torch.random, name, None)
        monkeypatch.setattr(torch, name, None)
    judge_claim(id)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_balancing_loss_by_hand() -> None:
    # two experts, four tokens, three of them to expert 0: 2·(0.6·0.75 + 0.4·0.25)
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.2, 0.8]], dtype=torch.float64)
    shares = F.one_hot(probs.argmax(-1), 2).double().mean(0)
    assert float(2 * (probs.mean(0) * shares).sum()) == pytest.approx(1.1, rel=1e-12)
    judged = verdict_on("balance-loss")
    assert judged.condition is not None and judged.condition.startswith("k = 1, ")
    for k, line in enumerate(judged.computation[1:], 1):
        stated, module = (float(text.split()[-1]) for text in line.split(",")[:2])
        assert stated == pytest.approx(k * module, rel=1e-5)  # printed to six decimals


def test_other_modules_get_another_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture, activate, sinusoid = moe.mixture, ffn.activate, layers.sinusoid
    # experts whose input is weighted, activations of twice the value, waves a position late
    monkeypatch.setattr(moe, "mixture", lambda how, k: mixture(how, k, weigh_input=True))
    monkeypatch.setattr(ffn, "activate", lambda x, *how: 2 * activate(x, *how))
    monkeypatch.setattr(layers, "sinusoid", lambda at, d, style: sinusoid(at + 1, d, style=style))
    for id in ("moe-output-sum", "swish-silu", "relu-max", "sinusoidal-formula"):
        judged = judge_claim(id)
        assert judged.verdict == WRONG
        assert "not that" in judged.reason
    assert judge_claim("k-experts-get-gradient").verdict == RIGHT  # whatever the weight multiplies


def test_the_routers_of_transformers_take_the_orders_that_ours_were_found_to_take() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    sizes = {"hidden_size": D, "num_experts_per_tok": 2, "num_local_experts": 8, "num_experts": 8}
    config, x_ND = SimpleNamespace(**sizes, norm_topk_prob=True), values(30, D, seed=21).float()
    for kind in (GptOssTopKRouter, MixtralTopKRouter, Qwen3MoeTopKRouter):
        router = kind(config)
        with torch.no_grad():
            router.weight.copy_(values(8, D, seed=22))
            _, weights, chosen = router(x_ND)
        largest = (x_ND @ router.weight.detach().T).topk(2)
        assert torch.equal(chosen, largest.indices)
        # softmax over the two chosen: order b
        torch.testing.assert_close(weights, largest.values.softmax(-1), rtol=1e-5, atol=1e-6)
    follow = verdict_on("gate-softmax-order-b").correct.partition("; not")[0]
    assert {"gpt-oss-20b", "mixtral-8x7b", "qwen3-30b-a3b"} <= {*follow.split(", ")}


# ---- in Chinese: the same numbers, nothing left in English


BRACES = re.compile(r"\{[^{}]*\}")
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]\d+)?|[²³¼]")
NAME = re.compile(r"\{(\w+)\}")

# Code words that stand in a Chinese text as they are; names and terms have a capital letter.
AS_THEY_ARE = """
    base bias conj float floor gelu logit logits meta norm recurrent relu sandwich sigmoid silu
    softmax sqrt tanh torch weight alibi learned sinusoidal rope none rmsnorm
    gate_proj up_proj down_proj q_proj o_proj layer_norm gelu_tanh
"""
ALLOWED = {*AS_THEY_ARE.split(), *(name for name in FIELDS if "_" in name), "dw_e"}
WORD = re.compile(r"(?<![A-Za-z_])[a-z]{2}[a-z_]{2,}(?![A-Za-z_])")


@pytest.fixture(scope="module")
def both() -> dict[str, dict[str, Verdict]]:
    return {id: {lang: verdict_on(id, lang=lang) for lang in ("en", "zh")} for id in ALL}


def rendered(verdict: Verdict) -> str:
    return in_text(verdict_report(verdict)) + in_text(verdicts_report([verdict], verdict.lang))


def numbers(text: str) -> Counter[str]:
    """The numbers of a text, whatever the language does with their order."""
    return Counter(found.lstrip("+").rstrip(",.") for found in NUMBER.findall(text))


def english_words(text: str, quoted: tuple[str, ...] = ()) -> list[str]:
    """Words of a Chinese text in small letters that are no code word, and in no quotation."""
    text = " ".join(text.split())
    for quotation in sorted(quoted, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z_]){re.escape(quotation)}", " ", text)
    return [word for word in WORD.findall(text) if word not in ALLOWED]


def quoted_of(verdict: Verdict) -> tuple[str, ...]:
    """What is named after somebody else: ids and names of models, the source of a count."""
    from metacount.catalog import entries

    fields = verdict.claim.claimed if isinstance(verdict.claim.claimed, dict) else {}
    written = [f"{name}{mark}" for name in fields if name in FIELDS for mark in (" ", "：")]
    names = [text for e in entries() for text in (e.id, e.name, e.published.params_source or "")]
    options = [str(verdict.claim.options.get(name)) for name in ("formula", "also_name")]
    code = [f"（{verdict.claim.topic}）", "metacount claims", "`check`", verdict.claim.id]
    return (*filter(None, names), *written, *options, *code)


@daily(10)
@pytest.mark.parametrize("id", one_in(2, ALL))
def test_a_claim_is_told_in_both_languages(id: str, both: dict[str, dict[str, Verdict]]) -> None:
    en, zh = both[id]["en"], both[id]["zh"]
    assert (zh.verdict, zh.lang, en.lang) == (en.verdict, "zh", "en")
    assert english_words(rendered(zh), quoted_of(zh)) == []
    assert not re.search(r"[一-鿿]", rendered(en))
    for text in (zh.statement, zh.reason):
        assert re.search(r"[一-鿿]", text) and text.endswith("。")
    assert numbers(rendered(zh)) == numbers(rendered(en))
    assert "{" not in rendered(zh) and "}" not in rendered(zh)
    assert {*LETTER.findall(zh.reason + zh.correct)} == {*LETTER.findall(en.reason + en.correct)}


SENTENCES = [(claim.id, s) for claim in ALL.values() for s in (*claim.explain, *claim.condition)]
SENTENCES += [(j, s) for j, (texts, _) in judges().items() for t in texts.values() for s in t]
WORDS = re.compile(r'"[^"]*"')


def test_sentences_compute_the_same_in_both_languages() -> None:
    """Between the braces stands the same but for the words; outside, the same digits."""
    for id, sentence in SENTENCES:
        texts = sentence.say, sentence.say_zh
        put = ([WORDS.sub("", braces) for braces in BRACES.findall(text)] for text in texts)
        assert sorted(next(put)) == sorted(next(put)), id
        typed = (BRACES.sub("", text) for text in texts)
        assert numbers(next(typed)) == numbers(next(typed)), id
    for claim in ALL.values():
        assert numbers(claim.statement) == numbers(claim.statement_zh)
        assert all(s.say_zh.endswith("。") and s.say.endswith(".") for s in claim.explain)


def test_a_mismatch_is_seen() -> None:
    assert numbers("1,048,576 of 7") != numbers("1,048,576 个中 8 个")
    assert numbers("4·d² and 4e-16") == numbers("误差 4e-16，4·d²")
    assert numbers("4·d²") != numbers("4·d³")
    assert english_words("精确值 here 7，N·d 少，LLaMA 的 h_kv") == ["here"]
    assert english_words("由 x from KerasHub 公布", ("KerasHub",)) == ["from"]
    first = ALL["llama-7b-block"]
    left = changed("llama-7b-block", statement_zh=first.statement)
    zh = judge_claim(left, lang="zh")
    assert "layer" in english_words(rendered(zh), quoted_of(zh))


def test_the_words_that_are_data_have_their_chinese() -> None:
    assert [t.meaning for t in MODEL_TERMS if t.meaning not in chinese()] == []
    assert [name for name in VERDICTS if name not in chinese()] == []
    assert [name for name in TOPICS if f"topic:{name}" not in chinese()] == []


@daily(6)
@pytest.mark.parametrize("english", chinese())
def test_a_text_of_the_table_has_the_same_values(english: str) -> None:
    told = chinese()[english]
    assert Counter(NAME.findall(english)) == Counter(NAME.findall(told))
    plain = (NAME.sub("", text) for text in (english, told))
    assert numbers(next(plain)) == numbers(next(plain))
