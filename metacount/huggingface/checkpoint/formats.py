"""Quantised checkpoints: which stored tensors are scales, and what weight the packed ones hold.

A format is recognised by tensors that stand together, each with the type and the shape it must
have; never by a name alone. What a header cannot say stays unsaid: `shape` and `n_values` None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from metacount.formats.tensors import Shape, StoredTensor
from metacount.frozen import frozen

if TYPE_CHECKING:
    from metacount.files import Json

WORD = 32  # bits of the integers into which GPTQ, AWQ and compressed-tensors pack

FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
WORDS = ("I32", "U32")
INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")

# Tensors that stand beside a packed weight, by its format.
BESIDE_QWEIGHT = ("qzeros", "scales", "g_idx")
BESIDE_WEIGHT_PACKED = (
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
    "input_global_scale",
    "input_scale",
    "input_zero_point",
)
BESIDE_BNB_4BIT = (
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    "quant_state.bitsandbytes__nf4",
    "quant_state.bitsandbytes__fp4",
)
BNB_4BIT, INT8 = "bitsandbytes 4-bit", "bitsandbytes int8"
PLAIN = ("FP8", "FP4", "int8", INT8)  # of a value in each stored one
# Beside a weight of 8 bits `X.weight`: after its own name, or in its module.
AFTER_NAME = ("_scale_inv", "_scale", "_scale_2")
IN_MODULE = ("scale", "input_scale", "activation_scale", "weight_zero_point")
# Of the KV cache: one number each.
CACHE_SCALES = ("k_scale", "v_scale", "q_scale", "kv_scale")

# How gate and up of a stack of experts stand in a GGUF file, which a module has as one tensor.
APART = "gate and up apart"

# Values that share one scale, by the scale's type: OCP's MXFP4 and NVIDIA's NVFP4.
FP4_GROUPS = {"F8_E8M0": ("MXFP4", 32), "F8_E4M3": ("NVFP4", 16)}


class Weight(NamedTuple):
    """One weight as a module would have it, and the stored tensors that it is made of."""

    name: str
    shape: Shape | None
    n_values: int | None
    sources: tuple[str, ...]
    dtype: str
    how: str = ""  # how it is stored, where that is not simply as it is
    packed: bool = False  # several logical values in one stored value


@frozen
class Unpacked:
    """A checkpoint's weights, and what belongs to its number format alone."""

    weights: tuple[Weight, ...]
    scales: dict[str, str]  # the format, by tensor
    formats: dict[str, int]  # weights in a format, by format


Stored = dict[str, StoredTensor]
# A shape, where the header says it; the format; how it is stored, in words.
Read = tuple[Shape | None, str, str]


class Packing(NamedTuple):
    """Bits of a packed value, and how many values share a scale; None where it is not said."""

    bits: int | None = None
    group_size: int | None = None


@frozen
class Quantization:
    """What a config says of its packed weights: of all, and of those of single modules (MLX)."""

    packing: Packing
    by_module: dict[str, Packing]


def quantization_of(config: Json) -> Quantization:
    """Read the quantization_config of a config or of its text model.

    compressed-tensors has bits and group size in config_groups, MLX (and GPTQ) at the top, and
    MLX those of single modules under their names.

    >>> quantization_of({"quantization_config": {"bits": 4, "group_size": 64}}).packing
    Packing(bits=4, group_size=64)
    """
    parts = [part for part in (config, *config.values()) if isinstance(part, dict)]
    declared = next((q for p in parts if isinstance(q := p.get("quantization_config"), dict)), {})
    groups = declared.get("config_groups")
    if not isinstance(groups, dict):
        modules = {k: _packing(v, "bits") for k, v in declared.items() if isinstance(v, dict)}
        return Quantization(packing=_packing(declared, "bits"), by_module=modules)
    weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
    packings = {_packing(weight, "num_bits") for weight in weights if weight is not None}
    # which group a module is in is said by patterns of names, which are not run
    columns = [{packing[i] for packing in packings} for i in range(2)]
    agreed = (values.pop() if len(values) == 1 else None for values in columns)
    return Quantization(packing=Packing(*agreed), by_module={})


def _packing(config: object, bits: str) -> Packing:
    if not isinstance(config, dict):
        return Packing()
    numbers = [config.get(name) for name in (bits, "group_size")]
    return Packing(*(n if type(n) is int and 0 < n <= 2**20 else None for n in numbers))


def unpack(tensors: Iterable[StoredTensor], quantization: Quantization | None = None) -> Unpacked:
    """Find what the stored tensors hold.

    `quantization` is what the config says, for a format that does not show it.
    """
    stored = {tensor.name: tensor for tensor in tensors}
    quantised = quantization or Quantization(packing=Packing(), by_module={})
    weights: dict[str, Weight] = {}
    scales: dict[str, str] = {}
    formats: dict[str, int] = {}
    for tensor in stored.values():
        name, stem = tensor.name, tensor.name.rpartition(".")[0]
        packing = quantised.by_module.get(stem, quantised.packing)
        unpacked = _in_a_format(tensor, stored, packing)
        if unpacked is None:
            continue
        target, (shape, style, how), ends = unpacked
        n_values = 2 * tensor.n_bytes if style == BNB_4BIT else None
        weight = _weight(tensor, target, shape, how, n_values)
        weights[name] = weight._replace(packed=style not in PLAIN)
        formats[style] = formats.get(style, 0) + 1
        scales |= dict.fromkeys((end for end in ends if end in stored), style)
    for tensor in stored.values():
        name = tensor.name
        if name in weights or name in scales:
            continue
        if name.rpartition(".")[2] in CACHE_SCALES and tensor.n_values == 1:
            scales[name] = "KV cache"
        else:
            weights[name] = _weight(tensor, name, tensor.shape)
    return Unpacked(weights=tuple(weights.values()), scales=scales, formats=formats)


def _weight(
    tensor: StoredTensor, name: str, shape: Shape | None, how: str = "", n_values: int | None = None
) -> Weight:
    if shape is not None:
        n_values = math.prod(shape)
    return Weight(name, shape, n_values, (tensor.name,), tensor.dtype, how)


def _in_a_format(
    tensor: StoredTensor, stored: Stored, packing: Packing
) -> tuple[str, Read, list[str]] | None:
    """Find the name of the weight that a tensor holds in a format, how, and what may stand beside
    it.
    """
    name, dtype = tensor.name, tensor.dtype
    stem, _, leaf = name.rpartition(".")
    inside = {end: f"{stem}.{end}" for end in (*BESIDE_QWEIGHT, "weight_scale", "SCB")}
    blocks = name.removesuffix("_blocks")
    scales = stored.get(inside["scales"])
    if leaf == "qweight" and scales and dtype in WORDS:
        others = [stored.get(inside[end]) for end in ("qzeros", "g_idx")]
        read = _gptq_or_awq(tensor.shape, scales.shape, *(t.shape if t else () for t in others))
        return f"{stem}.weight", read, [inside[end] for end in BESIDE_QWEIGHT]
    if leaf == "weight_packed" and inside["weight_scale"] in stored:
        read = _compressed(tensor, stored[inside["weight_scale"]], packing)
        return f"{stem}.weight", read, [f"{stem}.{end}" for end in BESIDE_WEIGHT_PACKED]
    if leaf == "weight" and scales and dtype == "U32":
        read = _mlx(tensor.shape, scales.shape, packing)
        return name, read, [f"{stem}.{end}" for end in ("scales", "biases")]
    if blocks != name and (companions := stored.get(f"{blocks}_scales")):
        # gpt-oss: [.., out, groups, 16] of two values a byte, and scales [.., out, groups]
        if len(tensor.shape) < 2 or tensor.shape[:-1] != companions.shape or dtype != "U8":
            return None
        *outer, groups, n_bytes = tensor.shape
        return blocks, ((*outer, groups * n_bytes * 2), "MXFP4", "MXFP4"), [companions.name]
    if f"{name}.absmax" in stored:  # the shape is among the values of quant_state
        return name, (None, BNB_4BIT, BNB_4BIT), [f"{name}.{end}" for end in BESIDE_BNB_4BIT]
    if leaf == "weight" and inside["SCB"] in stored and dtype == "I8":
        return name, (tensor.shape, INT8, INT8), [inside["SCB"], f"{stem}.weight_format"]
    if dtype in (*FP8, "F4", "I8", "U8"):
        ends = [name + end for end in AFTER_NAME]
        ends += [f"{stem}.{end}" for end in IN_MODULE if leaf == "weight"]
        ends = [end for end in ends if end in stored]
        return (name, _scaled(tensor, [stored[end] for end in ends]), ends) if ends else None
    return None


def _gptq_or_awq(shape: Shape, scales: Shape, qzeros: Shape, g_idx: Shape) -> Read:
    """GPTQ packs along the input: qweight [in·bits/32, out], scales [groups, out], g_idx [in];
    AWQ along the output: qweight [in, out·bits/32], scales [groups, out].
    """
    style, n_bits, shape_read = "GPTQ", 0, None
    if len(shape) == len(scales) == 2 and 0 not in (*shape, *scales):
        (rows, columns), out = shape, scales[1]
        if columns != out:
            style, n_bits = "AWQ", _whole(columns * WORD, out)
        elif len(g_idx) == 1 and g_idx[0]:
            n_bits = _whole(rows * WORD, g_idx[0])
        elif len(qzeros) == 2:
            n_bits = _whole(qzeros[1] * WORD, out)
        if 0 < n_bits <= 8:
            shape_read = (out, rows) if style == "AWQ" else (out, rows * WORD // n_bits)
    return (
        shape_read,
        style,
        f"{style}, {n_bits} bits" if shape_read else f"{style}, bits not known",
    )


def _whole(total: int, parts: int) -> int:
    """Return total / parts where that is a whole number, else 0."""
    return total // parts if total % parts == 0 else 0


def _compressed(tensor: StoredTensor, scale: StoredTensor, packing: Packing) -> Read:
    """Read a weight of compressed-tensors: words [out, in·bits/32], whose bits the config says, the
    last one of a row filled up; scales [out, groups]. Or NVFP4, or MXFP4 with scales in bytes.
    """
    bits, group = packing
    if scale.dtype == "U8" and packing == (4, 32):
        scale = scale._replace(dtype="F8_E8M0")
    if (fp4 := _fp4(tensor, scale)) is not None:
        return fp4
    shape: Shape | None = None
    if tensor.dtype in WORDS and bits in (1, 2, 4, 8) and tensor.shape:
        per_word = WORD // bits
        most = n_in = tensor.shape[-1] * per_word
        if group is not None and len(scale.shape) > 1:
            n_in = scale.shape[-1] * group
        shape = (*tensor.shape[:-1], n_in) if most - per_word < n_in <= most else None
    return _by_config("compressed-tensors", bits, shape)


def _by_config(style: str, bits: int | None, shape: Shape | None) -> Read:
    known = f"{bits} bits" if shape else "bits not known from header and config"
    return shape, style, f"{style}, {known}"


def _fp4(tensor: StoredTensor, scale: StoredTensor) -> Read | None:
    """Read two values of 4 bits in a byte [.., in/2], with a scale for each group of them."""
    if tensor.dtype not in ("U8", "I8") or scale.dtype not in FP4_GROUPS:
        return None
    style, group = FP4_GROUPS[scale.dtype]
    if not tensor.shape or not scale.shape or 2 * tensor.shape[-1] != scale.shape[-1] * group:
        return None
    return (*tensor.shape[:-1], 2 * tensor.shape[-1]), style, style


def _mlx(shape: Shape, scales: Shape, packing: Packing) -> Read:
    """Read a weight of MLX: words [.., out, in·bits/32], scales [.., out, in/group_size]."""
    bits, group = packing
    shape_read: Shape | None = None
    if bits and group and scales and shape and scales[:-1] == shape[:-1]:
        n_in = scales[-1] * group
        shape_read = (*scales[:-1], n_in) if shape[-1] * WORD == n_in * bits else None
    return _by_config("MLX", bits, shape_read)


def _scaled(tensor: StoredTensor, scales: list[StoredTensor]) -> Read:
    """Read a value in each stored one, beside a scale; or two of 4 bits in each byte."""
    for scale in scales:
        if (fp4 := _fp4(tensor, scale)) is not None:
            return fp4
    if tensor.dtype == "U8":  # bytes of an unknown format: nothing is certain
        return None, "unknown", "bytes with scales, format not known"
    style = {"I8": "int8", "F4": "FP4"}.get(tensor.dtype, "FP8")
    return tensor.shape, style, style
