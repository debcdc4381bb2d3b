"""Bytes of quantised models: against files on the hub, by hand, and of hostile configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.published import CONFIGS, TABLE
from hypothesis import given, settings
from hypothesis import strategies as st

import metacount
from metacount import find_model
from metacount.api import count
from metacount.errors import InputError
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.textbook.stored import Stored, stored_from_config

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
GATES = {**FP8, "modules_to_not_convert": [f"model.layers.{i}.mlp.gate" for i in range(94)]}
MINIMAX = {**FP8, "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}


def stored(config: dict[str, Any]) -> Stored | str | None:
    return stored_from_config(spec_from_config(config).spec, config)


@pytest.mark.parametrize(
    ("name", "n_bytes", "n_values"),
    [
        # bytes: total_size of openai/gpt-oss-20b's index, and the tensors of -120b; values: by the
        # hub's API, of files that pack two in a byte
        ("gpt-oss-20b", 13_761_264_768, 21_511_953_984),
        ("gpt-oss-120b", 65_248_815_744, 120_412_337_472),
    ],
)
def test_mxfp4_is_as_large_as_the_files(name: str, n_bytes: int, n_values: int) -> None:
    found = stored(CONFIGS[name])
    assert isinstance(found, Stored)
    assert found.n_bytes == n_bytes
    assert count(CONFIGS[name]).stored_bytes == n_bytes
    # each byte of a block is a value there, each scale another
    scales = found.n_values - TABLE[name]["params"]
    assert scales * 32 == int(found.how.split(": ")[1].split(" of ")[0].replace(",", ""))
    assert found.n_values == n_values


def test_mlx_is_as_large_as_the_files() -> None:
    """The index's total_size is 10,426,433,504: with a tower of 456,010,480 values of 2 bytes, and
    A_log of 24 layers, 32 heads each, in 4 bytes where others have 2.
    """
    counted = count(CONFIGS["Qwen3.5-9B-MLX-8bit"])
    assert counted.stored_bytes == 10_426_433_504 - 2 * 456_010_480 - 2 * 24 * 32


@pytest.mark.parametrize(
    ("name", "quantization", "n_values"),
    [
        # values of the safetensors files with their scales, by the hub's API
        ("Qwen3-30B-A3B", GATES, 30_533_947_392),
        ("Qwen3-235B-A22B", GATES, 235_107_904_512),
        ("Qwen3-Coder-480B-A35B-Instruct", GATES, 480_184_064_000),
        ("MiniMax-M2.7", MINIMAX, 228_703_644_928 - 62 * 256),  # of M2.5; less the routers' biases
    ],
)
def test_blocks_of_fp8_have_as_many_scales_as_the_files(
    name: str, quantization: dict[str, Any], n_values: int
) -> None:
    found = stored({**CONFIGS[name], "quantization_config": quantization})
    assert isinstance(found, Stored)
    assert found.n_values == n_values


# One layer: q, o [12, 12], k, v [6, 12], gate, up [20, 12], down [12, 20]; head [33, 12].
SMALL = {
    "model_type": "llama",
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 20,
    "vocab_size": 33,
}
TALL = [(12, 12), (12, 12), (6, 12), (6, 12), (20, 12), (20, 12), (12, 20)]
REST = 2 * (2 * 33 * 12 + 3 * 12)  # two tables and three norms in bf16


def compressed(**weights: Any) -> dict[str, Any]:
    groups = {"a": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


MODELOPT = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "exclude_modules": []}


@pytest.mark.parametrize(
    ("quantization", "n_bytes"),
    [
        # a float32 for each block of 8 x 8
        (
            {"quant_method": "fp8", "weight_block_size": [8, 8]},
            REST + sum(o * i + 4 * -(-o // 8) * -(-i // 8) for o, i in TALL),
        ),
        ({"quant_method": "fp8"}, REST + sum(o * i + 4 for o, i in TALL)),
        # words of 8 values: of 12 two, of 20 three; scales in 2 bytes; the shape in 16
        (
            compressed(num_bits=4, type="int", strategy="group", group_size=4),
            REST + sum(o * 4 * -(-i // 8) + 2 * o * -(-i // 4) + 16 for o, i in TALL),
        ),
        (
            compressed(num_bits=8, type="float", strategy="channel"),
            REST + sum(o * i + 2 * o for o, i in TALL),
        ),
        (
            compressed(num_bits=4, type="float", strategy="group", group_size=32),
            REST + sum(o * i // 2 + o for o, i in TALL),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            REST + sum(o * i // 2 + o * -(-i // 16) + 8 for o, i in TALL),
        ),
        # each module as it is listed; a prefix is the experts or a block; the others are whole
        (
            {
                **MODELOPT,
                "quantized_layers": {
                    "model.layers.0.self_attn": {"quant_algo": "FP8"},
                    "model.layers.0.mlp.gate_proj": {"quant_algo": "W4A16_NVFP4"},
                    "model.layers.0.mlp.down_proj": {"quant_algo": "MXFP8"},
                    "mtp.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
                    "lm_head": {"quant_algo": "NVFP4"},
                },
            },
            2 * (33 * 12 + 3 * 12)
            + sum(o * i + 8 for o, i in TALL[:4])
            + (20 * 6 + 20 + 4)
            + 2 * 20 * 12
            + (12 * 20 + 12)
            + (33 * 6 + 33 + 8),
        ),
        # qweight [in/8, out], qzeros [groups, out/8], scales [groups, out], g_idx [in]
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 4},
            REST
            + sum(
                4 * -(-i // 8) * o + 4 * (i // 4) * -(-o // 8) + 2 * (i // 4) * o + 4 * i
                for o, i in TALL
            ),
        ),
        # a byte of two values; an absmax in float32 for 64; the table of 16 float32
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            REST + sum(o * i // 2 + 4 * -(-o * i // 64) + 64 for o, i in TALL),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, REST
         + sum(o * i + 4 * o + 1 for o, i in TALL)),
        # tables too; a scale and a bias of each group
        (
            {"bits": 4, "group_size": 4},
            2 * 3 * 12
            + sum(o * 4 * -(-i // 8) + 4 * o * (i // 4) for o, i in [*TALL, (33, 12), (33, 12)]),
        ),
    ],
)  # fmt: skip
def test_formats_by_hand(quantization: dict[str, Any], n_bytes: int) -> None:
    found = stored({**SMALL, "quantization_config": quantization})
    assert isinstance(found, Stored), found
    assert found.n_bytes == n_bytes


def test_a_file_of_the_quantiser_beside_the_config(tmp_path: Path) -> None:
    quantization = {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    expected = REST + sum(o * i // 2 + o * -(-i // 16) + 8 for o, i in TALL)
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        assert metacount.count(name).stored_bytes == expected
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": 4}')
    with pytest.raises(InputError, match="quantization must be an object"):
        metacount.count(str(tmp_path))


@pytest.mark.parametrize(
    ("kept", "whole"),
    [
        (["model.layers.0.self_attn"], TALL[:4]),
        (["model.layers.0.mlp*"], TALL[4:]),
        (["re:.*self_attn.*"], TALL[:4]),
        (["re:.*mlp\\.(gate|up)_proj$"], TALL[4:6]),
        (["*.down_proj"], TALL[6:]),
        (["gate_proj"], TALL[4:5]),
        (["model.layers.1.mlp", "gate", "mtp.layers.0*", "visual.layers.0.mlp"], []),
    ],
)
def test_modules_that_are_kept(kept: list[str], whole: list[tuple[int, int]]) -> None:
    quantization = {**FP8, "weight_block_size": [64, 64], "modules_to_not_convert": kept}
    found = stored({**SMALL, "quantization_config": quantization})
    assert isinstance(found, Stored)
    packed = sum(o * i + 4 for o, i in TALL)
    assert found.n_bytes == REST + packed + sum(o * i - 4 for o, i in whole)


def test_attention_that_is_kept_in_layers_whose_heads_are_not_alike() -> None:
    # of Gemma 4 31B, whose config names the attention of each layer
    spec = find_model("gemma2-9b", ["n_layers=4", "n_kv_heads_windowed=4"]).spec
    kept = [f"model.layers.{i}.self_attn*" for i in range(4)]
    found = stored_from_config(spec, {"quantization_config": {**FP8, "ignore": kept}})
    assert isinstance(found, Stored)
    # two layers of each kind: q and o [16·256, 3584], k and v [8·256 or 4·256, 3584]
    params = 2 * 3584 * 256 * 2 * (16 + 16 + 8 + 4)
    assert found.by_role["attention"] == (params, 2 * params)
    only_last = stored_from_config(spec, {"quantization_config": {**FP8, "ignore": kept[3:]}})
    assert isinstance(only_last, Stored)
    # layers 1 and 3 see everything: the last has 2 bytes a value, the others a byte and scales
    of_last = 2 * 3584 * 256 * (16 + 8)
    scales = (params - of_last) // 128**2
    assert only_last.by_role["attention"] == (params, params + of_last + 4 * scales)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "hqq"}, "is of a format that is not read: hqq"),
        ({"quant_algo": "MIXED_PRECISION"}, "not read: MIXED_PRECISION"),
        (MODELOPT, "quantized_layers must name the modules"),
        ({**MODELOPT, "quantized_layers": {"lm_head": {"quant_algo": "INT3"}}}, "not read: INT3"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "names no modules that stay"),
        (compressed(num_bits=99), "must be 1 to 8 bits"),
        ({**FP8, "modules_to_not_convert": [3]}, "must be a list of names"),
        ({**FP8, "ignore": ["re:(a+)+$"]}, "has a pattern that is not read"),
        ({**FP8, "ignore": ["re:" + "(a|b)" * 40]}, "has a pattern that is not read"),
    ],
)
def test_what_is_not_known_is_said(quantization: dict[str, Any], message: str) -> None:
    config = {**SMALL, "quantization_config": quantization}
    found = stored(config)
    assert isinstance(found, str)
    assert message in found
    counted = count(config)
    assert counted.stored_bytes is None
    assert "stored_bytes" not in counted.to_dict()
    assert any(note.startswith("stored_bytes is not known: ") for note in counted.notes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=9) | st.just("fp8"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = words(
    "quant_method quant_algo bits group_size weight_block_size config_groups ignore "
    "modules_to_not_convert load_in_8bit activation_scheme exclude_modules"
)
METHODS = st.sampled_from(["fp8", "gptq", "awq", "mxfp4", "bitsandbytes", "compressed-tensors"])


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)), JSON), METHODS | JSON)
def test_no_config_breaks_it(quantization: dict[str, Any], method: Any) -> None:
    config = {**SMALL, "quantization_config": {**quantization, "quant_method": method}}
    assert isinstance(stored(config), Stored | str | None)


# One layer whose sizes are whole groups: q, o [64, 64], k, v [32, 64], gate, up [96, 64], down.
EVEN = {**SMALL, "hidden_size": 64, "intermediate_size": 96}
SHAPES = [(64, 64), (64, 64), (32, 64), (32, 64), (96, 64), (96, 64), (64, 96)]
EVEN_REST = 2 * (2 * 33 * 64 + 3 * 64)


def bytes_by_torchao(kind: str, rows: int, columns: int) -> int:
    """Bytes of what torchao packs a matrix into: values and scales."""
    pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    import torch
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    matrix = torch.ones(rows, columns, dtype=torch.bfloat16)
    packed: Any = (
        NVFP4Tensor.to_nvfp4(matrix)
        if kind == "nvfp4"
        else MXTensor.to_mx(matrix, torch.float4_e2m1fn_x2, 32)
    )
    return sum(getattr(packed, name).nbytes for name in packed.tensor_data_names)


def bytes_by_transformers(rows: int, columns: int) -> int:
    """Bytes of the tensors of transformers' layer in blocks of FP8."""
    import torch
    from transformers.integrations.finegrained_fp8 import FP8Linear

    with torch.device("meta"):
        layer = FP8Linear(columns, rows, block_size=(16, 48))
    return sum(tensor.nbytes for tensor in layer.state_dict().values())


@pytest.mark.parametrize(
    ("quantization", "of_matrix"),
    [
        # ModelOpt has two float32 more: weight_scale_2 and input_scale
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
            lambda rows, columns: bytes_by_torchao("nvfp4", rows, columns) + 8,
        ),
        (
            compressed(num_bits=4, type="float", strategy="group", group_size=32),
            lambda rows, columns: bytes_by_torchao("mxfp4", rows, columns),
        ),
        ({"quant_method": "fp8", "weight_block_size": [16, 48]}, bytes_by_transformers),
    ],
    ids=["nvfp4", "mxfp4", "fp8"],
)
def test_a_matrix_takes_the_bytes_that_a_library_stores(
    quantization: dict[str, Any], of_matrix: Any
) -> None:
    found = stored({**EVEN, "quantization_config": quantization})
    assert isinstance(found, Stored)
    assert found.n_bytes == EVEN_REST + sum(of_matrix(*shape) for shape in SHAPES)
