"""A checkpoint with a multi-token-prediction layer, as DeepSeek-V3 stores it: its own count."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from helpers.header_files import written
from helpers.release import one_day_in
from helpers.small_configs import small_config

from metacount.formulas import mtp
from metacount.huggingface.checkpoint.compare import module_tensors
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.huggingface.module.model import build_transformers
from metacount.resolve import find_any
from metacount.spec import Workload
from metacount.verify.compare import verify_model

CONFIG = {
    **small_config("deepseek_v3"),
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 2,
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
    for expert in range(8):
        sizes = {"gate_proj": [24, 48], "up_proj": [24, 48], "down_proj": [48, 24]}
        more |= {f"mlp.experts.{expert}.{part}.weight": size for part, size in sizes.items()}
    more |= {"enorm.weight": [48], "hnorm.weight": [48], "eh_proj.weight": [48, 96]}
    more |= {"shared_head.norm.weight": [48], "shared_head.head.weight": [101, 48]}
    more["embed_tokens.weight"] = [101, 48]
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
    result = verify_model(find_any(folder(tmp_path, stored())), Workload(seq_len=5))
    witnesses = {witness.name: witness for witness in result.witnesses}
    assert result.agree, result.differences
    assert witnesses["checkpoint"].figures["params"] == witnesses["formula"].figures["params"]
    own = mtp.params(spec_from_config(CONFIG).spec)
    assert {witness.figures["mtp_params"] for witness in result.witnesses} <= {own, None}
    assert witnesses["checkpoint"].figures["mtp_params"] == own
    detail = witnesses["checkpoint"].detail
    copies = 2 * 101 * 48
    assert f"of the prediction layers, {copies:,} values are copies of embedding" in detail
    assert "and 8 values are buffers" in detail
    modeling = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(modeling, "MtpModel"):
        pytest.skip("this version of transformers makes no prediction modules")
    for name in ("mtp_params", "mtp_active_params", "mtp_matmul_flops"):
        three = [witnesses[who].figures[name] for who in ("formula", "reference", "transformers")]
        assert three[0] and three == three[:1] * 3, name
    assert (
        witnesses["transformers"].parts["mtp_by_role"] == witnesses["formula"].parts["mtp_by_role"]
    )


@one_day_in(6)
def test_a_module_of_another_size_is_a_difference(tmp_path: Path) -> None:
    other = stored(wrong={"model.layers.2.eh_proj.weight": [48, 95]})
    result = verify_model(find_any(folder(tmp_path, other)), Workload(seq_len=5))
    assert not result.agree
    assert any(line.startswith("mtp_params: formula - checkpoint") for line in result.differences)
