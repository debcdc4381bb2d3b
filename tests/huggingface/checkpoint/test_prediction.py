"""A checkpoint with a multi-token-prediction layer, as DeepSeek-V3 stores it: its own count."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.header_files import written
from helpers.release import one_day_in

from metacount.formulas import mtp
from metacount.huggingface.checkpoint.compare import module_tensors
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.module.model import build_transformers
from metacount.resolve import find_any
from metacount.spec import Workload
from metacount.verify.compare import verify_model

CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 14,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "intermediate_size": 17,
    "vocab_size": 101,
    "pad_token_id": 0,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7,
    "q_lora_rank": 11,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 9,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_nextn_predict_layers": 1,
}
LAST = "model.layers.1."  # whose layer the prediction module's is like


def stored(*, wrong: dict[str, list[int]] | None = None) -> dict[str, list[int]]:
    """Names and shapes of a whole checkpoint: the experts of the last layer one by one."""
    module, _ = build_transformers(CONFIG)
    tensors = module_tensors(module)
    found = {**tensors.parameters, **{k: v for k, v in tensors.buffers.items() if "bias" in k}}
    shapes = {name: list(shape) for name, shape in found.items()}
    layer = {k.removeprefix(LAST): v for k, v in shapes.items() if k.startswith(LAST)}
    fused = {k for k in layer if k.startswith("mlp.experts.")}
    more = {k: v for k, v in layer.items() if k not in fused}
    for expert in range(4):
        sizes = {"gate_proj": [7, 14], "up_proj": [7, 14], "down_proj": [14, 7]}
        more |= {f"mlp.experts.{expert}.{part}.weight": size for part, size in sizes.items()}
    more |= {"enorm.weight": [14], "hnorm.weight": [14], "eh_proj.weight": [14, 28]}
    more |= {"shared_head.norm.weight": [14], "shared_head.head.weight": [101, 14]}
    more["embed_tokens.weight"] = [101, 14]
    return {**shapes, **{f"model.layers.2.{k}": v for k, v in more.items()}, **(wrong or {})}


def folder(path: Path, shapes: dict[str, list[int]]) -> str:
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    written(path / "model.safetensors", header, b"\0" * at)
    (path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


@one_day_in(6)
def test_its_prediction_layer_is_counted_apart_and_agrees(tmp_path: Path) -> None:
    found = verify_model(find_any(folder(tmp_path, stored())), Workload(seq_len=5))
    said = {witness.name: witness.figures for witness in found.witnesses}
    spec = spec_from_config(CONFIG).spec
    assert found.agree, found.differences
    assert said["checkpoint"]["mtp_params"] == mtp.params(spec)
    assert said["formula"]["mtp_params"] == said["reference"]["mtp_params"] == mtp.params(spec)
    assert said["checkpoint"]["params"] == said["formula"]["params"]
    detail = next(w.detail for w in found.witnesses if w.name == "checkpoint")
    copies = 2 * 101 * 14
    assert f"of the prediction layers, {copies:,} values are copies of embedding" in detail
    assert "and 4 values are buffers" in detail


@one_day_in(6)
def test_transformers_own_modules_agree_where_there_are_some(tmp_path: Path) -> None:
    modeling = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(modeling, "MtpModel"):
        pytest.skip("this version of transformers makes no prediction modules")
    found = verify_model(find_any(folder(tmp_path, stored())), Workload(seq_len=5))
    said = {witness.name: witness for witness in found.witnesses}
    for name in ("mtp_params", "mtp_active_params", "mtp_matmul_flops"):
        figures = [said[who].figures[name] for who in ("formula", "reference", "transformers")]
        assert figures[0] and figures == figures[:1] * 3, name
    assert said["transformers"].parts["mtp_by_role"] == said["formula"].parts["mtp_by_role"]


@one_day_in(6)
def test_a_module_of_another_size_is_a_difference(tmp_path: Path) -> None:
    other = stored(wrong={"model.layers.2.eh_proj.weight": [14, 27]})
    found = verify_model(find_any(folder(tmp_path, other)), Workload(seq_len=5))
    assert not found.agree
    assert any(line.startswith("mtp_params: formula - checkpoint") for line in found.differences)
