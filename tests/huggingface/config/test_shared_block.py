"""Configs of Zamba2: the published keys, what transformers derives from them, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import one_line
from helpers.mutated_configs import answers
from helpers.published import CONFIGS
from helpers.small_configs import SMALL

from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.huggingface.config.keys import Unmapped
from metacount.huggingface.config.to_spec import spec_from_config

LAYERS = CONFIGS["zamba2-2.7b"]["layers_block_type"]


def test_what_is_left_out_is_zamba2_2_7b_but_for_blocks_and_heads() -> None:
    spec = spec_from_config({"model_type": "zamba2"}).spec
    assert spec.mixer_pattern == entry("zamba2-2.7b").spec().mixer_pattern
    assert (spec.n_shared_blocks, spec.n_ssm_heads, spec.ssm_head_dim) == (1, 8, 640)
    assert (spec.d_ff, spec.head_dim, spec.attention_scale) == (10240, 160, 80**-0.5)


@pytest.mark.parametrize("stored", [2, 3, 7])
def test_blocks_beyond_the_uses_and_the_bias_of_the_convolution(stored: int) -> None:
    """Three layers use one: more blocks are never made; the bias is there whatever is said."""
    for bias in (True, False):
        said = {"num_mem_blocks": stored, "use_conv_bias": bias}
        found = answers({"model_type": "zamba2", **SMALL["zamba2"], **said})
        assert found.verdict == "equal", found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_mem_rope": True}, {"position": "rope", "rope_theta": 10000.0}),
        ({"use_shared_attention_adapter": True}, {"attention_adapters": True}),
        ({"num_mem_blocks": 20}, {"n_shared_blocks": 9}),  # the others are never made
        ({"num_mem_blocks": 9, "tie_word_embeddings": False}, {"tie_embeddings": False}),
        ({"add_bias_linear": True}, {"ffn_bias": True, "ssm_in_bias": True, "ssm_out_bias": True}),
        (
            {"layers_block_type": ["mamba"] * 54, "hybrid_layer_ids": []},
            {"attention": "none", "n_shared_blocks": None, "d_ff": None, "position": "none"},
        ),
    ],
)
def test_a_key_and_what_it_becomes(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = spec_from_config({**CONFIGS["zamba2-2.7b"], **changes}).spec
    assert {name: getattr(spec, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings has a value that no spec expresses"),
        ({"layers_block_type": [*LAYERS[:-1], "attention"]}, "layers_block_type has a value that"),
        ({"num_hidden_layers": 53}, "layers_block_type must be a list of 53 names: got"),
        ({"layers_block_type": None}, ""),
        ({"layers_block_type": None, "num_hidden_layers": 12}, "num_hidden_layers has a value tha"),
        ({"hybrid_layer_ids": [6]}, "hybrid_layer_ids has a value that no spec expresses"),
        ({"mamba_headdim": 32}, "mamba_headdim has a value that no spec expresses: got 32; by the"),
        ({"n_mamba_heads": 7}, "n_mamba_heads must divide the 5120 channels: got 7; change one"),
        ({"attention_head_dim": 80}, "attention_head_dim has a value that no spec expresses"),
        ({"head_dim": 80}, "head_dim is the same as attention_head_dim, which has another value"),
        (
            {"num_key_value_heads": 8, "use_shared_attention_adapter": True},
            "num_key_value_heads has a value that no spec expresses: got 8; adapters of attention",
        ),
        ({"use_shared_mlp_adapter": False}, "use_shared_mlp_adapter has a value that no spec"),
        ({"time_step_limit": [0.0, 1.0]}, "time_step_limit has a value that no spec expresses"),
        ({"num_mem_blocks": 0}, "num_mem_blocks must be at least 1: got 0; choose 1 to"),
        ({"lora_rank": 64}, "lora_rank is not read by this type, and says something else: got 64"),
        ({"chunk_size": 1}, "chunk_size must be at least 2: got 1; choose 2 to"),
    ],
)
def test_a_key_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    config = {**CONFIGS["zamba2-2.7b"], **changes}
    if not message:
        assert spec_from_config(config).spec.n_layers == 54
        return
    with pytest.raises(SpecError) as caught:
        spec_from_config(config)
    said = one_line(caught.value)
    assert said.startswith(message)
    unmapped = any(words in said for words in ("no spec expresses", "understands", "is not read"))
    assert isinstance(caught.value, Unmapped) == unmapped


def test_other_names_that_transformers_takes_too_late_are_refused() -> None:
    """Its class counts its layers before it takes `layer_types`."""
    config = {k: v for k, v in CONFIGS["zamba2-2.7b"].items() if k != "layers_block_type"}
    with pytest.raises(SpecError, match="layer_types"):
        spec_from_config({**config, "layer_types": LAYERS})


def test_a_longer_context_loads_no_weights() -> None:
    mapped = spec_from_config({**CONFIGS["zamba2-2.7b"], "use_long_context": True})
    assert mapped.differs and "use_long_context" in mapped.differs[0]
    assert mapped.spec == spec_from_config(CONFIGS["zamba2-2.7b"]).spec
