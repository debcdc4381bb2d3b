"""Quantised formats: scales are named, packed tensors hold exactly what their shapes say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest

from metacount.formats.tensors import StoredTensor
from metacount.huggingface.checkpoint.formats import quantization_of, unpack

NOT_KNOWN = "bits not known from header and config"
Tensors = dict[str, tuple[str, tuple[int, ...]]]


class Case(NamedTuple):
    """Stored tensors, and what they are: the weight, its shape and values, how it is packed."""

    tensors: Tensors
    shape: tuple[int, ...] | None
    how: str
    quantization: dict[str, Any] | None = None
    name: str = "x.weight"
    n_values: int | None = None  # where the shape does not say


def gptq(bits: int, n_in: int, *gone: str) -> Tensors:
    """Along the input: n_in·bits / 32 words; along the output of the zeros: 32·bits / 32."""
    tensors: Tensors = {
        "x.qweight": ("I32", (n_in * bits // 32, 32)),
        "x.qzeros": ("I32", (3, bits)),
        "x.scales": ("F16", (3, 32)),
        "x.g_idx": ("I32", (n_in,)),
    }
    return {name: value for name, value in tensors.items() if name not in gone}


def odd_gptq(qweight: tuple[int, ...], scales: tuple[int, ...]) -> Case:
    tensors: Tensors = {"x.qweight": ("I32", qweight), "x.scales": ("F16", scales)}
    return Case(tensors, None, "GPTQ, bits not known")


def compressed(bits: object, group: int | None, scales: tuple[int, ...], n_in: int | None) -> Case:
    """12 words a row of compressed-tensors, whose bits the config says."""
    tensors: Tensors = {
        "x.weight_packed": ("I32", (17, 12)),
        "x.weight_scale": ("BF16", scales),
        "x.weight_shape": ("I64", (2,)),
    }
    said = {"config_groups": {"g": {"weights": {"num_bits": bits, "group_size": group}}}}
    how = f"compressed-tensors, {bits} bits" if n_in else f"compressed-tensors, {NOT_KNOWN}"
    return Case(tensors, (17, n_in) if n_in else None, how, said)


def mlx(bits: int | None, group: int | None, n_in: int | None) -> Case:
    tensors: Tensors = {"x.weight": ("U32", (5, 17, 12)), "x.scales": ("BF16", (5, 17, 3))}
    said = {"bits": bits, "group_size": group}
    how = f"MLX, {bits} bits" if n_in else f"MLX, {NOT_KNOWN}"
    return Case(tensors, (5, 17, n_in) if n_in else None, how, said)


def halves(leaf: str, scale: str, group: int, how: str) -> Case:
    """Two values in a byte."""
    scales = (scale, (17, 96 // group))
    return Case({f"x.{leaf}": ("U8", (17, 48)), "x.weight_scale": scales}, (17, 96), how)


MXFP4_BYTES: Tensors = {"x.weight_packed": ("U8", (17, 48)), "x.weight_scale": ("U8", (17, 3))}
FOUR_BITS = {"config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}}
BNB = "x.weight."

CASES = [
    # DeepSeek-V3: blocks of 128 x 128, so [7168, 2048] has [56, 16] scales
    Case({"x.weight": ("F8_E4M3", (7168, 2048)), "x.weight_scale_inv": ("F32", (56, 16))},
         (7168, 2048), "FP8"),
    *(Case(gptq(bits, n_in, *gone), (32, n_in), f"GPTQ, {bits} bits")
      for bits, n_in in ((2, 64), (3, 96), (4, 96), (8, 64)) for gone in ((), ("x.g_idx",))),
    odd_gptq((7, 32), (3, 32)),
    odd_gptq((7,), (3, 32)),
    odd_gptq((12, 32), (32,)),
    odd_gptq((12, 32), (3, 0)),
    odd_gptq((0, 32), (3, 32)),
    # along the output: 88 x 4 / 32 = 11 words
    Case({"x.qweight": ("I32", (26, 11)), "x.qzeros": ("I32", (2, 11)),
          "x.scales": ("F16", (2, 88))}, (88, 26), "AWQ, 4 bits"),
    # 5 experts, 34 outputs, 96 inputs = 3 groups of 32 = 3 x 16 bytes of 2 values
    Case({"e.up_blocks": ("U8", (5, 34, 3, 16)), "e.up_scales": ("U8", (5, 34, 3))},
         (5, 34, 96), "MXFP4", name="e.up"),
    # the shape is not in the header: 33 bytes hold 65 or 66 values
    Case({"x.weight": ("U8", (33, 1)), f"{BNB}absmax": ("U8", (2,)),
          f"{BNB}quant_map": ("F32", (16,)), f"{BNB}nested_absmax": ("F32", (1,)),
          f"{BNB}nested_quant_map": ("F32", (256,)),
          f"{BNB}quant_state.bitsandbytes__nf4": ("U8", (80,))},
         None, "bitsandbytes 4-bit", n_values=66),
    Case({"x.weight": ("I8", (17, 13)), "x.SCB": ("F32", (17,)), "x.weight_format": ("U8", ())},
         (17, 13), "bitsandbytes int8"),
    halves("weight", "F8_E8M0", 32, "MXFP4"),
    halves("weight_packed", "F8_E4M3", 16, "NVFP4"),
    Case(MXFP4_BYTES, None, f"compressed-tensors, {NOT_KNOWN}"),
    Case(MXFP4_BYTES, (17, 96), "MXFP4", FOUR_BITS),
    compressed(4, 32, (17, 3), 96),  # 12 words x 32 / 4 = 3 groups x 32
    compressed(4, 10, (17, 9), 90),  # the last word holds 2 values
    compressed(4, 10, (17, 10), None),  # 100 values do not fit
    compressed(4, 8, (17, 11), None),  # 88 leave a word empty
    compressed(8, None, (17, 1), 48),  # one scale a row
    compressed(5, None, (17, 1), None),
    compressed(True, None, (17, 1), None),
    compressed("4", None, (17, 1), None),
    mlx(4, 32, 96),
    mlx(8, 16, 48),
    mlx(3, 32, None),
    mlx(4, 64, None),
    mlx(None, 32, None),
    Case({"x.weight": ("U8", (17, 48)), "x.weight_scale": ("F32", (17,))}, None,
         "bytes with scales, format not known"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.how} {case.shape}")
def test_a_packed_weight_and_its_scales(case: Case) -> None:
    stored = [StoredTensor(name, *value, "f") for name, value in case.tensors.items()]
    stored.append(StoredTensor("x.bias", "F16", (32,), "f"))
    for quantization in ({"quantization_config": case.quantization},
                         {"text": {"quantization_config": case.quantization}}):  # fmt: skip
        unpacked = unpack(stored, quantization_of(quantization))
        weight, bias = sorted(unpacked.weights, key=lambda weight: weight.name == "x.bias")
        assert (weight.name, weight.shape, weight.how) == (case.name, case.shape, case.how)
        assert bias.shape == (32,)
        n_values = math.prod(case.shape) if case.shape else case.n_values
        assert weight.n_values == n_values
        assert {*unpacked.scales} == {*case.tensors} - {*weight.sources}
        (style,) = unpacked.formats
        assert unpacked.formats == {style: 1}
        assert {*unpacked.scales.values()} == {style}


def test_a_plain_weight_and_the_scales_of_a_cache() -> None:
    plain = unpack([StoredTensor("x.weight", "F8_E4M3", (3, 5), "f")])
    assert [(w.shape, w.how) for w in plain.weights] == [((3, 5), "")]
    assert plain.formats == {}
    scales = unpack([StoredTensor(f"a.{x}_scale", "F32", (), "f") for x in "kv"])
    assert (scales.weights, len(scales.scales)) == ((), 2)


@pytest.mark.parametrize(
    "said",
    [None, 4, [], {"config_groups": []}, {"config_groups": {"g": None}},
     {"config_groups": {"g": {"weights": None}}}, {"bits": -4, "group_size": 2**40}],
)  # fmt: skip
def test_a_config_that_says_nothing_of_bits(said: object) -> None:
    assert quantization_of({"quantization_config": said}).packing == (None, None)
