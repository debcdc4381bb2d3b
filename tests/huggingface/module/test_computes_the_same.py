"""Every mapped type with transformers' weights: logits, decode, gradients are theirs, or refused.

What a config says and no count depends on (RoPE scaling, multipliers, caps, eps, activations, how
a router weighs) is changed here key by key: the reference computes the same, or will not be loaded.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from typing import Any

import pytest
import torch
from helpers import ROOT
from helpers.beside_transformers import Found, compare, odd
from helpers.release import chosen, daily, one_in
from helpers.small_configs import GEMMA4, SHARING, small_configs
from hypothesis import given, settings
from hypothesis import strategies as st

from metacount.huggingface.config.keys import HARMLESS, words
from metacount.huggingface.config.record import family_of
from metacount.huggingface.config.to_spec import mapped_types, spec_from_config
from metacount.huggingface.module.model import config_class
from metacount.modules import attention
from metacount.spec.field import altered

torch.set_num_threads(1)

BOUND = 1e-11  # relative; what was seen is 1e-13 at most

# Loaded nowhere, with the reason.
LATE = "Hunyuan norms queries and keys after RoPE, not before"
REFUSED = {
    "switch_transformers": "tokens over expert_capacity are not dropped",
    "nemotron": "Nemotron's LayerNorm adds 1 to its stored weights",
    "nanochat": "nanochat turns queries and keys by the negative angles",
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), LATE),
    "kolibri1": "Kolibri adds its bias for the choice to the logits, not to the probabilities",
    "lfm2_moe": "LFM2 adds 1e-6 to the sum that its routed weights are divided by",
    "glm_moe_dsa": "GLM-5's indexer rotates pairs of values, here halves",
    "ernie4_5_moe": "ERNIE adds its router's bias to the probabilities, for the choice only",
    "afmoe": "AFMoE adds its router's bias to the probabilities, for the choice only",
}
TYPES = [name for name in mapped_types() if name not in REFUSED]
# between them all placements of norms, positions, routers, experts and mixers that transformers has
OF_EACH_KIND = words(
    "llama olmo2 gemma2 granite mixtral phimoe qwen2_moe deepseek_v2 deepseek_v3 longcat_flash "
    "kimi_linear jamba nemotron_h bloom opt mpt gpt2 gpt_neox phi xglm t5 bart bert modernbert "
    "ministral3 llama4_text gpt_oss minimax minimax_m3_vl_text deepseek_v32 mamba2 zamba2 xlstm "
    "olmo_hybrid lfm2 recurrent_gemma gemma3n_text gemma4_text apertus"
)


@cache
def base(name: str) -> Found:
    return compare(odd(name), bound=BOUND)


def same(found: Found) -> bool:
    """Not a difference; what transformers itself cannot run is nobody's."""
    return found.kind in ("equal", "refused", "impossible")


@daily(20)
@pytest.mark.parametrize("name", chosen(TYPES, lambda i: TYPES[i] in OF_EACH_KIND))
def test_a_mapped_type_computes_what_transformers_computes(name: str) -> None:
    assert base(name).kind == "equal", base(name)


# Latents of even width: `view_as_complex` in DeepSeek-V2 takes no other.
V2 = {"kv_lora_rank": 14, "qk_nope_head_dim": 6}
OTHER_WAYS: list[tuple[str, dict[str, Any]]] = [
    ("deepseek_v2", {**V2, "topk_method": "group_limited_greedy", "n_routed_experts": 10,
                     "n_group": 5, "topk_group": 2}),
    ("deepseek_v2", {**V2, "q_lora_rank": None}),
    ("deepseek_v3", {"rope_interleave": False}),
    ("falcon", {"hidden_size": 48, "num_attention_heads": 6, "alibi": True, "multi_query": False,
                "parallel_attn": False}),
    ("nemotron_h", {"moe_latent_size": 16}),
    ("gemma4_text", GEMMA4),
]  # fmt: skip


@daily(2)
@pytest.mark.parametrize(("name", "changes"), OTHER_WAYS)
def test_a_type_in_another_way_computes_the_same(name: str, changes: dict[str, Any]) -> None:
    found = compare({**odd(name), **changes}, bound=BOUND)
    assert found.kind == "equal", found


def test_layers_read_what_the_last_indexer_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers' GLM-5.2 does, once the indexer turns pairs of values as there."""

    def turned(self: Any, x: Any, visibility: Any) -> Any:
        return attention.rotated(x, visibility, self.rope_dim, "interleaved", self.rotation)

    def read(config: dict[str, Any]) -> Any:
        return altered(spec_from_config(config), differs=())

    monkeypatch.setattr(attention.Indexer, "_rotated", turned)
    monkeypatch.setattr("helpers.beside_transformers.spec_from_config", read)
    for more in (SHARING, {"indexer_types": ["full", "full", "shared", "shared"], "index_topk": 3}):
        assert compare({**odd("glm_moe_dsa"), **more}, bound=BOUND).kind == "equal"


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_is_not_loaded_says_why(name: str) -> None:
    assert base(name).kind == "refused"
    assert base(name).reason == f"the reference computes something else: {REFUSED[name]}"


@daily(13)
@pytest.mark.parametrize("name", one_in(8, TYPES))
@settings(max_examples=4)
@given(data=st.data())
def test_other_sizes_and_structures(name: str, data: st.DataObject) -> None:
    """Layers, heads, groups, biases, ties, windows, QK-norm, experts: one draw each."""
    found = compare(data.draw(small_configs(name)), bound=BOUND, decode=False)
    assert same(found), found


# ---- RoPE: where to find it, and every kind of scaling ----

SCALED: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    # beyond max_position_embeddings = 11 for PREFILL = 9 and TOTAL = 17 tokens
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 3.0, "original_max_position_embeddings": 11},
    "llama3, a step": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 2.0,
                       "high_freq_factor": 2.0, "original_max_position_embeddings": 11},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 11,
             "beta_fast": 3.0, "beta_slow": 0.5},
    # both ends of the ramp at pair 0
    "yarn, a step": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 11,
                     "beta_fast": 2.0, "beta_slow": 2.0},
    "yarn with mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3,
                         "original_max_position_embeddings": 13, "truncate": False},
    "yarn by lengths": {"type": "yarn", "factor": None, "attention_factor": 1.7,
                        "original_max_position_embeddings": 7},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 11},
}  # fmt: skip
THETAS = {"rope_theta", "rotary_emb_base", "global_rope_theta"}
ROPE = [name for name in TYPES if THETAS & family_of(name).defaults.keys()]  # type: ignore[union-attr]
# an object for each kind of layer
NESTED = ("gemma3_text", "gemma3n_text", "modernbert", "olmo3", "mellum")
NOT_THEIRS = {
    # transformers' Phi-3 takes longrope only, and any yarn for it
    **{("phi3", kind): "impossible" for kind in SCALED if kind != "longrope"},
    # its Phi-MoE wants two keys more, and then takes the short factors at any length
    **{("phimoe", kind): "impossible" for kind in SCALED},
    # RecurrentGemma has no scaled RoPE
    **{("recurrent_gemma", kind): "impossible" for kind in SCALED},
    # Mellum's rope_parameters need a base in each object
    **{("mellum", kind): "impossible" for kind in SCALED},
    # angles that a length changes: each of DeepSeek-V4's compressors would have a length of its own
    **{("deepseek_v4", kind): "refused" for kind in ("dynamic", "longrope")},
    # ministral3's queries need llama_4_scaling_beta beside it
    **{("ministral3", kind): "impossible" for kind in ("linear", "dynamic")},
}


def scaled(name: str, kind: str) -> dict[str, Any]:
    """The base config with this kind of scaling."""
    config, rope = odd(name), dict(SCALED[kind])
    if kind == "dynamic":
        config["max_position_embeddings"] = 11
    if kind == "longrope":
        pairs = rotated(name) // 2
        rope["short_factor"] = [1 + 0.1 * i for i in range(pairs)]
        rope["long_factor"] = [1.5 + 0.2 * i for i in range(pairs)]
        if name == "phi3":
            config["original_max_position_embeddings"] = 11
    if name == "ministral3" and kind not in ("linear", "dynamic"):
        rope["llama_4_scaling_beta"] = 0.3
    if name in NESTED:
        turned = {"rope_type": "default", "rope_theta": 77.0}
        return {**config, "rope_parameters": {"full_attention": rope, "sliding_attention": turned}}
    return {**config, "rope_parameters": rope}


def rotated(name: str) -> int:
    spec = spec_from_config(odd(name)).spec
    return spec.rotary_dim or spec.head_dim or spec.qk_rope_head_dim or 0


@daily(17)
@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("name", one_in(32, ROPE))
def test_scaled_rope_is_that_of_transformers(name: str, kind: str) -> None:
    found = compare(scaled(name, kind), bound=BOUND, gradients=False)
    assert found.kind == NOT_THEIRS.get((name, kind), "equal"), found


def test_phi_moe_with_scaled_rope_is_refused() -> None:
    rope = {
        **scaled("phimoe", "longrope")["rope_parameters"],
        "short_mscale": 1.1,
        "long_mscale": 1.3,
    }
    found = compare({**odd("phimoe"), "rope_scaling": rope}, bound=BOUND)
    assert found.kind == "refused"
    assert "Phi-MoE in transformers takes RoPE's short factors at any length" in found.reason


@pytest.mark.parametrize("name", ["glm", "glm4", "glm4_moe", "gpt_neox"])
def test_an_odd_rotated_width_is_refused(name: str) -> None:
    """transformers rotates one value more, with the angles of the odd width: 0.6 apart."""
    config = odd(name) | ({"head_dim": 10} if "head_dim" in odd(name) else {})
    if name == "gpt_neox":
        config["rotary_pct"] = 0.32  # of 16
    found = compare(config, bound=BOUND)
    assert found.kind == "refused"
    assert found.reason.endswith("transformers rotates 6 values with the angles of 5")


@daily(4)
@pytest.mark.parametrize(("name", "kind"), one_in(3, itertools.product(NESTED, ["linear", "yarn"])))
def test_windowed_layers_have_a_scaling_of_their_own(name: str, kind: str) -> None:
    # a type without a default base needs one for each kind of layer
    rope = {"rope_theta": 55.0, **SCALED[kind]}
    plain = {"rope_type": "default", "rope_theta": 77.0}
    for full, sliding in ((plain, rope), (rope, {**rope, "factor": 2.0})):
        both = {"full_attention": dict(full), "sliding_attention": dict(sliding)}
        assert compare({**odd(name), "rope_parameters": both}, bound=BOUND).kind == "equal"
    found = compare({**odd(name), "rope_scaling": dict(rope)}, bound=BOUND)
    assert found.kind == NOT_THEIRS.get((name, kind), "equal"), found


# ---- keys that change no count ----


def changed(name: str) -> dict[str, Any]:
    """Of each key that may matter: another value of the kind that its default has."""
    family = family_of(name)
    assert family is not None
    declared = {field.name: field for field in dataclasses.fields(config_class(name))}
    mine = {key: field.default for key, field in declared.items()}
    mine |= {**family.defaults, **odd(name)}
    kinds = {key: str(declared[key].type) if key in declared else "" for key in mine}
    found = {key: _other(mine[key], kinds[key]) for key in mine if key not in HARMLESS}
    return {key: value for key, value in found.items() if value is not None}


def _other(value: Any, kind: str) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value * 1.7 if value else 0.3
    if value is None:
        return 0.7 if "float" in kind else 5 if "int" in kind else True if "bool" in kind else None
    return None


@daily(6)
@pytest.mark.parametrize("name", one_in(8, TYPES, first=3))
def test_every_number_at_once(name: str) -> None:
    """Multipliers, eps, bases, jitters; one by one where transformers or the spec refuses some."""
    numbers = {key: value for key, value in changed(name).items() if type(value) is float}
    found = compare({**odd(name), **numbers}, bound=BOUND, decode=False)
    assert same(found), found
    if found.kind != "equal":
        each = {key: quickly({**odd(name), key: value}) for key, value in numbers.items()}
        assert all(map(same, each.values())), each
        assert any(one.kind == "equal" for one in each.values()), each


@daily(14)
@pytest.mark.parametrize("name", one_in(8, TYPES, first=1))
def test_each_flag_and_each_null(name: str) -> None:
    for key, value in changed(name).items():
        if type(value) is not float:
            found = quickly({**odd(name), key: value})
            assert same(found), (key, value, found)


def quickly(config: dict[str, Any]) -> Found:
    return compare(config, bound=BOUND, decode=False, gradients=False)


def test_the_documentation_says_of_how_many_types_that_is_so() -> None:
    """And to which bound."""
    for page, what in (("README.md", "model types"), ("docs/proofs.md", "mapped types")):
        text = " ".join(ROOT.joinpath(page).read_text("utf-8").split())
        assert f"or {len(TYPES)} of the {len(mapped_types())} {what}" in text
        assert "to 1e-11" in text
    assert BOUND == 1e-11


# ---- these tests can fail ----


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaling that is left out, an eps, gradients, a cache: each planted, each found."""
    assert base("llama").distance < BOUND
    with monkeypatch.context() as patch:
        patch.setattr("metacount.huggingface.config.rope.scaling_of", lambda *_: None)
        assert compare(scaled("llama", "linear"), bound=BOUND).kind == "different"
    with monkeypatch.context() as patch:
        patch.setattr("metacount.huggingface.config.parts.LATENT_EPS", 1e-5)
        assert compare(odd("minicpm3"), bound=BOUND).kind == "different"
