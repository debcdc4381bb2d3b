"""Configs of MiniMax-M3's text model: the published sizes, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily
from helpers.small_configs import SMALL

import metacount
from metacount.catalog import entry
from metacount.errors import SpecError
from metacount.formulas import model
from metacount.huggingface.config.keys import UnmappedKey
from metacount.huggingface.config.to_spec import Mapped, spec_from_config
from metacount.spec import Workload

TYPE = "minimax_m3_vl_text"
# What the class has by default, and the checkpoint's first layers, which have neither index nor
# experts, and half of a head that RoPE rotates.
PUBLISHED: dict[str, Any] = {
    "model_type": TYPE,
    "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5000000,
        "partial_rotary_factor": 0.5,
    },
}
# values of the published checkpoint, and of its vision tower and projector as the class builds them
CHECKPOINT, VISION = 427_040_140_160, 631_185_920 + 234_381_312


def small(**keys: Any) -> Mapped:
    return spec_from_config({"model_type": TYPE, **SMALL[TYPE], **keys})


def test_the_published_layers_are_the_model_of_the_catalog() -> None:
    assert spec_from_config(PUBLISHED).spec == entry("minimax-m3-text").spec()


def test_the_checkpoint_comes_out_to_the_last_value() -> None:
    spec = entry("minimax-m3-text").spec()
    biases = model.buffers(spec)["selection_bias"]
    assert biases == 57 * 128
    assert model.params(spec) + biases + VISION == CHECKPOINT


def test_the_tower_that_is_left_out_has_as_many_parameters() -> None:
    import torch
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as theirs
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLConfig

    with torch.device("meta"):
        config = MiniMaxM3VLConfig()
        tower = theirs.MiniMaxM3VLVisionModel(config.vision_config)
        projector = theirs.MiniMaxM3VLMultiModalProjector(config)
    assert sum(p.numel() for each in (tower, projector) for p in each.parameters()) == VISION


def test_by_default_no_layer_has_an_index() -> None:
    """The class's own default; the sizes of the index are then passed over."""
    found = spec_from_config({"model_type": TYPE})
    assert found.spec.index_block_len is None
    assert found.spec.n_dense_layers == 0 and found.spec.d_ff is None


def test_an_index_in_layers_that_repeat() -> None:
    full, indexed = "full_attention", "minimax_m3_sparse"
    spec = small(layer_types=[full, indexed, full, indexed]).spec
    assert spec.index_pattern == "GI"
    assert [spec.has_index_layer(i) for i in range(4)] == [False, True, False, True]


def test_a_rotary_dim_that_transformers_passes_over_is_said() -> None:
    said = "rotary_dim 4 is not read by transformers, which rotates 12 of 12 values of a head"
    found = small(rotary_dim=4)
    assert found.spec.rotary_dim is None
    assert any(note.startswith(said) for note in found.notes)
    both = small(rotary_dim=6, rope_parameters={"rope_theta": 9.0, "partial_rotary_factor": 0.5})
    assert both.spec.rotary_dim == 6
    assert not any("rotary_dim" in note for note in both.notes)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"index_local_blocks": 0}, "index_local_blocks"),
        ({"index_local_blocks": 4}, "index_local_blocks .* choose at most index_topk_blocks = 3"),
        ({"index_head_dim": 6}, "index_head_dim"),
        ({"swiglu_alpha": 1.0}, r"swiglu_alpha .* got 1.0; choose 1.702"),
        ({"swiglu_limit": 3.0}, r"swiglu_limit .* got 3.0; choose 7.0"),
        (
            {"layer_types": ["sliding_attention"] * 4},
            "layer_types .* choose full_attention or minimax_m3_sparse",
        ),
        ({"mlp_layer_types": ["moe"] * 4}, "mlp_layer_types"),
        ({"sparse_attention_config": {"stride": 7}}, "sparse_attention_config.stride"),
        ({"sparse_attention_config": {"sparse_init_block": 1}}, "config.sparse_init_block"),
    ],
)
def test_what_no_spec_says_is_named(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UnmappedKey, match=said):
        small(**keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"index_block_size": 0}, "index_block_size"),
        ({"index_n_heads": 4}, "index_n_heads must divide num_attention_heads: 6 % 4 = 2: got 4"),
        ({"index_topk_blocks": "all"}, "index_topk_blocks"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_is_no_model_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as error:
        small(**keys)
    assert not isinstance(error.value, UnmappedKey)


@daily(6)
@pytest.mark.parametrize("seq_len", [2, 3, 8, 9, 10, 20])
def test_three_witnesses_agree_below_at_and_beyond_the_blocks(seq_len: int) -> None:
    """Blocks of 3, of which 3 are read: FLOPs of prefill and decode, and the cache."""
    found = metacount.verify({"model_type": TYPE, **SMALL[TYPE]}, Workload(seq_len=seq_len))
    assert [witness.name for witness in found.witnesses] == [
        "formula",
        "reference",
        "transformers",
    ]
    assert found.agree


def test_a_config_as_transformers_writes_it(tmp_path: Path) -> None:
    from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig

    MiniMaxM3VLTextConfig(**SMALL[TYPE]).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert spec_from_config(written).spec == small().spec
