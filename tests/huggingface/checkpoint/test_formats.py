"""Quantised formats: scales are named, packed tensors hold exactly what their shapes say."""

from __future__ import annotations

import pytest

from metacount.huggingface.checkpoint.formats import Unpacked, Weight, quantization_of, unpack
from metacount.huggingface.checkpoint.header import StoredTensor


def stored(**tensors: tuple[str, tuple[int, ...]]) -> list[StoredTensor]:
    return [
        StoredTensor(name.replace("__", "."), dtype, shape, "f")
        for name, (dtype, shape) in tensors.items()
    ]


def only(found: Unpacked) -> Weight:
    (weight,) = found.weights
    return weight


def test_fp8_with_block_scales() -> None:
    # DeepSeek-V3: blocks of 128 x 128, so [7168, 2048] has [56, 16] scales
    found = unpack(
        stored(x__weight=("F8_E4M3", (7168, 2048)), x__weight_scale_inv=("F32", (56, 16)))
    )
    assert only(found).shape == (7168, 2048)
    assert only(found).n_values == 7168 * 2048
    assert not only(found).packed
    assert found.scales == {"x.weight_scale_inv": "FP8"}
    assert found.formats == {"FP8": 1}


def test_fp8_without_scales_is_a_plain_weight() -> None:
    found = unpack(stored(x__weight=("F8_E4M3", (3, 5))))
    assert (only(found).shape, only(found).how, found.formats) == ((3, 5), "", {})


@pytest.mark.parametrize(("bits", "n_in"), [(2, 64), (3, 96), (4, 96), (8, 64)])
def test_gptq(bits: int, n_in: int) -> None:
    # along the input: n_in x bits / 32 words; along the output of the zeros: 40 x bits / 32
    tensors = stored(
        x__qweight=("I32", (n_in * bits // 32, 32)),
        x__qzeros=("I32", (3, 32 * bits // 32)),
        x__scales=("F16", (3, 32)),
        x__g_idx=("I32", (n_in,)),
        x__bias=("F16", (32,)),
    )
    for given in (tensors, [t for t in tensors if t.name != "x.g_idx"]):
        found = unpack(given)
        weight = next(w for w in found.weights if w.packed)
        assert (weight.name, weight.shape) == ("x.weight", (32, n_in))
        assert weight.n_values == 32 * n_in
        assert weight.how == f"GPTQ, {bits} bits"
        assert [w.name for w in found.weights if not w.packed] == ["x.bias"]
        assert set(found.scales.values()) == {"GPTQ"}
        assert len(found.scales) == len(given) - 2


def test_awq() -> None:
    # along the output: 88 x 4 / 32 = 11 words
    found = unpack(
        stored(x__qweight=("I32", (26, 11)), x__qzeros=("I32", (2, 11)), x__scales=("F16", (2, 88)))
    )
    assert (only(found).shape, only(found).how) == ((88, 26), "AWQ, 4 bits")
    assert found.formats == {"AWQ": 1}


def test_gptq_whose_shapes_make_no_sense_says_nothing() -> None:
    found = unpack(stored(x__qweight=("I32", (7, 32)), x__scales=("F16", (3, 32))))
    assert (only(found).shape, only(found).n_values) == (None, None)
    assert only(found).how == "GPTQ, bits not known"


@pytest.mark.parametrize(
    ("qweight", "scales"),
    [((7,), (3, 32)), ((12, 32), (32,)), ((12, 32), (3, 0)), ((0, 32), (3, 32)), ((7,), (3,))],
)
def test_packed_weights_of_shapes_that_no_packing_has(
    qweight: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    found = unpack(stored(x__qweight=("I32", qweight), x__scales=("F16", scales)))
    assert (only(found).shape, only(found).how) == (None, "GPTQ, bits not known")


def test_mxfp4_of_gpt_oss() -> None:
    # 5 experts, 34 outputs, 96 inputs = 3 groups of 32 = 3 x 16 bytes of 2 values
    found = unpack(
        stored(
            e__gate_up_proj_blocks=("U8", (5, 34, 3, 16)),
            e__gate_up_proj_scales=("U8", (5, 34, 3)),
            e__gate_up_proj_bias=("BF16", (5, 34)),
        )
    )
    weight = next(w for w in found.weights if w.packed)
    assert (weight.name, weight.shape) == ("e.gate_up_proj", (5, 34, 96))
    assert weight.n_values == 5 * 34 * 96
    assert found.scales == {"e.gate_up_proj_scales": "MXFP4"}


def test_bitsandbytes_4_bit() -> None:
    found = unpack(
        [
            *stored(
                x__weight=("U8", (33, 1)),
                x__weight__absmax=("U8", (2,)),
                x__weight__quant_map=("F32", (16,)),
                x__weight__nested_absmax=("F32", (1,)),
                x__weight__nested_quant_map=("F32", (256,)),
                x__weight__quant_state__bitsandbytes__nf4=("U8", (80,)),
            )[:5],
            StoredTensor("x.weight.quant_state.bitsandbytes__nf4", "U8", (80,), "f"),
        ]
    )
    # the shape is not in the header: 33 bytes hold 65 or 66 values
    assert (only(found).shape, only(found).n_values) == (None, 66)
    assert set(found.scales.values()) == {"bitsandbytes 4-bit"}
    assert len(found.scales) == 5


def test_bitsandbytes_8_bit() -> None:
    found = unpack(
        stored(x__weight=("I8", (17, 13)), x__SCB=("F32", (17,)), x__weight_format=("U8", ()))
    )
    assert only(found).shape == (17, 13)
    assert len(found.scales) == 2


@pytest.mark.parametrize(
    ("scale", "group", "style"), [("F8_E8M0", 32, "MXFP4"), ("F8_E4M3", 16, "NVFP4")]
)
@pytest.mark.parametrize("leaf", ["weight", "weight_packed"])
def test_two_values_in_a_byte(scale: str, group: int, style: str, leaf: str) -> None:
    tensors = [
        StoredTensor(f"x.{leaf}", "U8", (17, 48), "f"),
        StoredTensor("x.weight_scale", scale, (17, 96 // group), "f"),
    ]
    found = unpack(tensors)
    assert (only(found).name, only(found).shape) == ("x.weight", (17, 96))
    assert (only(found).how, only(found).packed) == (style, True)


@pytest.mark.parametrize(
    ("bits", "group", "n_words", "scales", "n_in"),
    [
        (4, 32, 12, (17, 3), 96),  # 12 words x 32 / 4 = 3 groups x 32
        (4, 10, 12, (17, 9), 90),  # the last word holds 2 values
        (4, 10, 12, (17, 10), None),  # 100 values do not fit
        (4, 8, 12, (17, 11), None),  # 88 leave a word empty
        (8, None, 12, (17, 1), 48),  # one scale a row
        (5, None, 12, (17, 1), None),
        (True, None, 12, (17, 1), None),
        ("4", None, 12, (17, 1), None),
        (None, None, 12, (17, 1), None),
    ],
)
def test_compressed_tensors_needs_the_config_s_bits(
    bits: object, group: int | None, n_words: int, scales: tuple[int, ...], n_in: int | None
) -> None:
    tensors = stored(
        x__weight_packed=("I32", (17, n_words)),
        x__weight_scale=("BF16", scales),
        x__weight_shape=("I64", (2,)),
    )
    groups = {"config_groups": {"g": {"weights": {"num_bits": bits, "group_size": group}}}}
    for config in ({"quantization_config": groups}, {"text": {"quantization_config": groups}}):
        weight = only(unpack(tensors, quantization_of(config)))
        assert weight.shape == (None if n_in is None else (17, n_in))
    assert only(unpack(tensors)).shape is None


@pytest.mark.parametrize(
    ("bits", "group", "n_in"),
    [(4, 32, 96), (8, 16, 48), (3, 32, None), (4, 64, None), (6, None, None), (None, 32, None)],
)
def test_mlx(bits: int | None, group: int | None, n_in: int | None) -> None:
    tensors = stored(x__weight=("U32", (5, 17, 12)), x__scales=("BF16", (5, 17, 3)))
    config = {"quantization_config": {"bits": bits, "group_size": group}}
    weight = only(unpack(tensors, quantization_of(config)))
    assert weight.shape == (None if n_in is None else (5, 17, n_in))
    assert weight.packed


def test_mxfp4_with_scales_in_bytes() -> None:
    tensors = stored(x__weight_packed=("U8", (17, 48)), x__weight_scale=("U8", (17, 3)))
    config = {"config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}}}
    assert only(unpack(tensors)).shape is None
    found = only(unpack(tensors, quantization_of({"quantization_config": config})))
    assert (found.shape, found.how) == ((17, 96), "MXFP4")


@pytest.mark.parametrize(
    "said",
    [None, 4, [], {"config_groups": []}, {"config_groups": {"g": None}},
     {"config_groups": {"g": {"weights": None}}}, {"bits": -4, "group_size": 2**40}],
)  # fmt: skip
def test_a_config_that_says_nothing_of_bits(said: object) -> None:
    assert quantization_of({"quantization_config": said}).packing == (None, None)


def test_bytes_of_an_unknown_format_say_nothing() -> None:
    found = unpack(stored(x__weight=("U8", (17, 48)), x__weight_scale=("F32", (17,))))
    assert (only(found).shape, only(found).n_values) == (None, None)


def test_scales_of_the_cache() -> None:
    found = unpack(stored(a__k_scale=("F32", ()), a__v_scale=("F32", (1,))))
    assert (found.weights, len(found.scales)) == ((), 2)
