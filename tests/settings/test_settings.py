"""`--set` by everybody's names, as arithmetic and as words; `--like`; every missing field named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.command_line import refused, run_json
from helpers.release import one_in

import metacount
from metacount import InputError, catalog, find_model
from metacount.cli import main
from metacount.settings import parse_settings
from metacount.spec.legend import MODEL_TERMS, SWITCHES


@pytest.mark.parametrize(
    ("model", "setting", "changes"),
    [
        ("llama-7b", "num_key_value_heads=8", {"n_kv_heads": 8}),
        ("llama-7b", "hidden_act=geglu", {"activation": "gelu", "gated": True}),
        ("gpt2", "activation=SwiGLU", {"activation": "silu", "gated": True}),
        ("gpt2", "n_positions=128k", {"n_positions": 131_072}),  # 128 · 1,024
        ("mistral-7b", "window=1K", {"window": 1024}),
        # one word of others for two of our fields: the one that this model has
        ("mixtral-8x7b", "intermediate_size=7", {"d_ff_expert": 7}),
        ("llama-7b", "intermediate_size=7", {"d_ff": 7}),
        ("llama-7b", "qkv_bias=true", {"q_bias": True, "k_bias": True, "v_bias": True}),
        ("deepseek-v3", "bias=true", dict.fromkeys(("mla_bias", "ffn_bias", "expert_bias"), True)),
        ("llama-7b", "d_ff=4*d_model", {"d_ff": 16_384}),
        ("llama-7b", "d_ff=2·m", {"d_ff": 22_016}),  # its own old value
        ("llama-7b", "d_ff=round_up(8/3*d, 256)", {"d_ff": 11_008}),
        ("llama-7b", "head_dim=hidden_size//num_attention_heads", {"head_dim": 128}),
    ],
)
def test_a_size_by_any_of_its_names(
    model: str, setting: str, changes: dict[str, int | bool | str]
) -> None:
    assert find_model(model, [setting]).changes == changes


def test_every_spelling_of_the_legend_means_its_field() -> None:
    for term in MODEL_TERMS:
        for word in (term.letter, *term.elsewhere):
            if term.name != "n_encoder_layers" and word not in ("hidden_dim", "num_layers"):
                (found,) = parse_settings([f"{word}=2"])
                assert found == term.name or found == word  # ambiguous: the model decides
    for field, words in SWITCHES.items():
        assert [w for w in words if w in metacount.spec.FIELDS and w != field] == []


def test_arithmetic_takes_new_sizes_in_any_order() -> None:
    settings = ["d_ff=4*d_model", "d_model=n_heads*head_dim", "n_heads=2", "h_kv=h", "head_dim=16"]
    found = find_model("gpt2", settings)
    assert found.changes == {"d_ff": 128, "d_model": 32, "n_heads": 2, "n_kv_heads": 2,
                             "head_dim": 16}  # fmt: skip
    assert found.computed == (
        "d_model = n_heads*head_dim = 32",
        "d_ff = 4*d_model = 128",
        "n_kv_heads = h = 2",
    )


@pytest.mark.parametrize("width", [1, 2, 3, 95, 96, 97, 384, 4096, 5120, 6656, 8192])
def test_llamas_rule_of_rounding(width: int) -> None:
    """As Meta's code cuts and rounds: int(8d/3), then up to a multiple of 256."""
    by_hand = 256 * ((int(2 * (4 * width) / 3) + 255) // 256)
    settings = [f"d_model={width}", "d_ff=8/3*d_model", "multiple_of=256"]
    found = find_model("llama-7b", settings)
    assert found.changes["d_ff"] == by_hand
    assert f"up to a multiple of 256: {by_hand:,}" in found.computed[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["d_ff=8/3*d_model"], "--set d_ff"),
        (["d_ff=4*n_hed"], "--set d_ff"),
        (["d_ff=4*gated"], "--set d_ff"),
        (["d_ff=seq_len"], "--set d_ff"),
        (["d_ff=d_ff/0"], "divides by zero"),
        (["d_ff=d_ff**9**9**9"], "--set d_ff"),
        (["d_ff=q_lora_rank*2"], "--set d_ff"),
        (["d_ff=d", "d_model=m"], "d_ff"),
        (["d_ff=__import__('os')"], "--set d_ff"),
        (["multiple_of=256"], "--set multiple_of"),
        (["d_ff=4*d", "multiple_of=0"], "--set multiple_of"),
        (["vocab_size=1m"], "write 1000000 or 1048576: got '1m'"),
        (["h=4", "n_heads=4"], "n_heads"),
        (["activation=swiglu", "gated=false"], "--set"),
        (["bias=maybe"], "--set bias"),
        (["num_hiden_layers=4"], "num_hidden_layers"),
        (["attention=mla"], "--set"),
        (["n_experts=8"], "--set: missing: top_k (a number), d_ff_expert (a number)"),
        (
            ["n_experts=8", "top_k=2", "d_ff_expert=7", "ffn_scale=2.0"],
            "leave out `--set ffn_scale`",
        ),
    ],
)
def test_a_setting_that_cannot_be(settings: list[str], said: str) -> None:
    with pytest.raises((InputError, metacount.SpecError), match=re.escape(said)):
        find_model("llama-7b", settings)


def test_a_model_like_another_keeps_its_ratios() -> None:
    small = metacount.like("llama", d_model=256, n_layers=4)
    spec, large = small.spec, catalog.entry("llama-7b").spec()
    assert (spec.d_model, spec.n_layers, spec.head_dim) == (256, 4, 128)
    assert spec.n_heads * large.d_model == large.n_heads * 256
    assert spec.d_ff * large.d_model == large.d_ff * 256
    assert spec.n_kv_heads * large.n_heads == large.n_kv_heads * spec.n_heads
    kept = {**large.to_dict(), **small.changes}
    assert spec.to_dict() == kept and small.published is None


@pytest.mark.parametrize(
    "entry",
    one_in(3, [e for e in catalog.entries() if e.sizes is not None]),
    ids=lambda entry: entry.id,
)
def test_every_model_can_be_made_twice_as_wide(entry: catalog.CatalogEntry) -> None:
    spec = entry.spec()
    wide = metacount.like(entry.id, d_model=2 * spec.d_model, n_layers=2 * spec.n_layers).spec
    twice = "n_heads d_ff d_ssm n_ssm_heads n_linear_heads n_linear_v_heads lru_width"
    for size in twice.split():
        assert (getattr(wide, size) or 0) == 2 * (getattr(spec, size) or 0)
    assert wide.head_dim == spec.head_dim and wide.ssm_head_dim == spec.ssm_head_dim
    assert wide.n_encoder_layers == 2 * spec.n_encoder_layers


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("llama", {"d_model": 250}, "--set"),
        ("mixtral", {"d_model": 256}, "n_kv_heads"),
        ("deepseek-v3", {"n_layers": 2}, "n_dense_layers (choose 0 to 2)"),
        ("lama", {}, "--like"),
        ("llama", {"n_kv_heads": 5}, "n_kv_heads must divide n_heads"),
    ],
)
def test_what_cannot_be_made_alike(name: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises((InputError, metacount.SpecError), match=re.escape(said)):
        metacount.like(name, **sizes)


def test_like_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    made = ["--like", "llama", "--set", "d_model=256", "--set", "n_layers=4"]
    found = run_json(capsys, "count", *made)
    assert found["model"] == "like:llama-7b"
    assert (
        found["params"] == metacount.count(metacount.like("llama", d_model=256, n_layers=4)).params
    )
    assert found["computed"] == ["n_heads=2, n_kv_heads=2, d_ff=688 from the ratios of llama-7b"]
    assert main(["formula", *made]) == 0
    assert "a model like LLaMA-7B" in capsys.readouterr().out
    assert main(["count", "gpt2", *made[:2], "--set", "vocab_size=100"]) == 0
    assert "like:llama-7b" in capsys.readouterr().out
    said = "--like takes the place of MODEL; leave one of them out"
    assert said in refused(capsys, "tree", "gpt2", "--like", "llama")
    both = run_json(capsys, "count", "gpt2", *made)
    assert [one["model"] for one in both] == ["gpt2", "like:llama-7b"]
    assert "MODEL is missing; give one, or --like NAME" in refused(capsys, "tree")


def test_a_file_names_all_that_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"d_model": 8, "norm": "rmsnorm", "kind": "decoder"}), "utf-8")
    said = (
        "missing: n_layers (a number), vocab_size (a number), position (none, learned, sinusoidal, "
        "rope, alibi, t5 or transformer_xl), n_heads (a number), head_dim (a number), n_kv_heads "
        "(a number), activation (relu, gelu, gelu_tanh, silu, relu2, sigmoid, "
        "identity, clamped_swiglu or xielu), gated (true or false), d_ff (a number)"
    )
    with pytest.raises(InputError, match=re.escape(said)):
        find_model(str(file))


def test_a_model_over_values_of_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    over = "d_ff=1024,2048,round_up(8/3*d, 256)"
    columns = ["--columns", "d_ff,params"]
    found = run_json(capsys, "count", "gpt2", "--over", over, *columns)
    names = ["d_ff=1024", "d_ff=2048", "d_ff=round_up(8/3*d, 256)"]
    assert [row["model"] for row in found] == names
    assert [row["d_ff"] for row in found] == [1024, 2048, 2048]
    alone = [metacount.count(find_model("gpt2", [f"d_ff={n}"])).params for n in (1024, 2048, 2048)]
    assert [row["params"] for row in found] == alone
    assert main(["count", "gpt2", "--over", "window=none,128"]) == 0
    assert "window=none" in capsys.readouterr().out.splitlines()[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt2", "--over", "d_ff"], "--over needs FIELD=VALUE,VALUE,...: got 'd_ff'"),
        (["gpt2", "--over", "d_ff=1,,2"], "--over needs FIELD=VALUE,VALUE,..."),
        (["gpt2", "--over", "d_ff=" + "1," * 64 + "1"], "--over takes at most 64 values: got 65"),
        (["gpt2", "llama-7b", "--over", "d_ff=1"], "--over takes one MODEL: got 2"),
        (["gpt2", "--over", "d_ff=1", "--set", "d_ff=2"], "--set: d_ff is given twice"),
        (["--folder", ".", "--over", "d_ff=1"], "--over does not go with --folder"),
        (["gpt2", "--over", "dff=1,2"], "is not a field of a model; did you mean d_ff"),
    ],
)
def test_over_what_cannot_be(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, "count", *arguments)
