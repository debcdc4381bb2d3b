"""Quantised checkpoints: which stored tensors are scales, and what weight the packed ones hold.

A format is recognised by tensors that stand together, each with the type and the shape it must
have; never by a name alone. What a header cannot say stays unsaid: `shape` and `n_values` None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from metacount.frozen import frozen
from metacount.huggingface.checkpoint.header import Shape, StoredTensor

if TYPE_CHECKING:
    from metacount.files import Json

WORD = 32  # bits of the integers into which GPTQ, AWQ and compressed-tensors pack

FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
WORDS = ("I32", "U32")
INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")

# Tensors that stand beside a packed weight, by its format.
BESIDE_MLX = ("scales", "biases")
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
Found = tuple[Weight, str, list[str]]  # the weight, its format, the tensors beside it


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
    said = next((q for p in parts if isinstance(q := p.get("quantization_config"), dict)), {})
    groups = said.get("config_groups")
    if not isinstance(groups, dict):
        modules = {k: _packing(v, "bits") for k, v in said.items() if isinstance(v, dict)}
        return Quantization(packing=_packing(said, "bits"), by_module=modules)
    weights = [group.get("weights") for group in groups.values() if isinstance(group, dict)]
    packings = {_packing(weight, "num_bits") for weight in weights if weight is not None}
    # which group a module is in is said by patterns of names, which are not run
    columns = [{packing[i] for packing in packings} for i in range(2)]
    agreed = (values.pop() if len(values) == 1 else None for values in columns)
    return Quantization(packing=Packing(*agreed), by_module={})


def _packing(said: object, bits: str) -> Packing:
    if not isinstance(said, dict):
        return Packing()
    numbers = [said.get(name) for name in (bits, "group_size")]
    return Packing(*(n if type(n) is int and 0 < n <= 2**20 else None for n in numbers))


def unpack(tensors: Iterable[StoredTensor], quantization: Quantization | None = None) -> Unpacked:
    """Find what the stored tensors hold.

    `quantization` is what the config says, for a format that does not show it.
    """
    stored = {tensor.name: tensor for tensor in tensors}
    said = quantization or Quantization(packing=Packing(), by_module={})
    weights: dict[str, Weight] = {}
    scales: dict[str, str] = {}
    formats: dict[str, int] = {}
    for tensor in stored.values():
        found = _in_a_format(tensor, stored, said)
        if found is None:
            continue
        weights[tensor.name], style, beside = found
        formats[style] = formats.get(style, 0) + 1
        scales |= dict.fromkeys(beside, style)
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
    tensor: StoredTensor,
    name: str,
    shape: Shape | None,
    how: str = "",
    *,
    packed: bool = False,
) -> Weight:
    return Weight(
        name=name,
        shape=shape,
        n_values=None if shape is None else math.prod(shape),
        sources=(tensor.name,),
        dtype=tensor.dtype,
        how=how,
        packed=packed,
    )


def _in_a_format(tensor: StoredTensor, stored: Stored, quantization: Quantization) -> Found | None:
    stem, _, leaf = tensor.name.rpartition(".")
    packing = quantization.by_module.get(stem, quantization.packing)
    if leaf == "qweight" and f"{stem}.scales" in stored and tensor.dtype in WORDS:
        return _gptq_or_awq(tensor, stem, stored)
    if leaf == "weight_packed" and f"{stem}.weight_scale" in stored:
        return _compressed(tensor, stem, stored, packing)
    if leaf == "weight" and f"{stem}.scales" in stored and tensor.dtype == "U32":
        return _mlx(tensor, stem, stored, packing)
    if leaf.endswith("_blocks") and f"{tensor.name.removesuffix('_blocks')}_scales" in stored:
        return _mxfp4_blocks(tensor, stored)
    if f"{tensor.name}.absmax" in stored:
        return _bnb_4bit(tensor, stored)
    if leaf == "weight" and f"{stem}.SCB" in stored and tensor.dtype == "I8":
        style = "bitsandbytes int8"
        beside = _present(stem + ".", ("SCB", "weight_format"), stored)
        return _weight(tensor, tensor.name, tensor.shape, style), style, beside
    if tensor.dtype in (*FP8, "F4", "I8", "U8"):
        return _scaled(tensor, stem if leaf == "weight" else None, stored)
    return None


def _present(start: str, ends: Iterable[str], stored: Stored) -> list[str]:
    return [start + end for end in ends if start + end in stored]


def _gptq_or_awq(tensor: StoredTensor, stem: str, stored: Stored) -> Found:
    """Read a GPTQ or AWQ weight. GPTQ packs along the input: qweight [in·bits/32, out], scales
    [groups, out], g_idx [in].

    AWQ packs along the output: qweight [in, out·bits/32], scales [groups, out].
    """
    beside = _present(stem + ".", BESIDE_QWEIGHT, stored)
    scales, qzeros = stored[f"{stem}.scales"].shape, stored.get(f"{stem}.qzeros")
    shape: Shape | None = None
    style, n_bits = "GPTQ", 0
    if len(tensor.shape) == len(scales) == 2 and 0 not in (*tensor.shape, *scales):
        (rows, columns), out = tensor.shape, scales[1]
        g_idx = stored.get(f"{stem}.g_idx")
        if columns == out and g_idx is not None and len(g_idx.shape) == 1 and g_idx.shape[0]:
            n_bits = _whole(rows * WORD, g_idx.shape[0])
        elif columns == out and qzeros is not None and len(qzeros.shape) == 2:
            n_bits = _whole(qzeros.shape[1] * WORD, out)
        elif columns != out:
            style, n_bits = "AWQ", _whole(columns * WORD, out)
        if 0 < n_bits <= 8:
            shape = (out, rows) if style == "AWQ" else (out, rows * WORD // n_bits)
    how = f"{style}, {n_bits} bits" if shape else f"{style}, bits not known"
    return _weight(tensor, f"{stem}.weight", shape, how, packed=True), style, beside


def _whole(total: int, parts: int) -> int:
    """Return total / parts where that is a whole number, else 0."""
    return total // parts if total % parts == 0 else 0


def _compressed(tensor: StoredTensor, stem: str, stored: Stored, packing: Packing) -> Found:
    """Read a weight of compressed-tensors: words [out, in·bits/32], whose bits the config says, the
    last one of a row filled up; scales [out, groups]. Or NVFP4, or MXFP4 with scales in bytes.
    """
    beside = _present(stem + ".", BESIDE_WEIGHT_PACKED, stored)
    name, scale = f"{stem}.weight", stored[f"{stem}.weight_scale"]
    bits, group = packing
    if scale.dtype == "U8" and packing == (4, 32):
        scale = scale._replace(dtype="F8_E8M0")
    found = _fp4(tensor, scale)
    if found is not None:
        shape, style = found
        return _weight(tensor, name, shape, style, packed=True), style, beside
    style = "compressed-tensors"
    words: Shape | None = None
    if tensor.dtype in WORDS and bits in (1, 2, 4, 8) and tensor.shape:
        per_word = WORD // bits
        most = tensor.shape[-1] * per_word
        n_in = most
        if group is not None and len(scale.shape) > 1:
            n_in = scale.shape[-1] * group
        words = (*tensor.shape[:-1], n_in) if most - per_word < n_in <= most else None
    how = f"{style}, {bits} bits" if words else f"{style}, bits not known from header and config"
    return _weight(tensor, name, words, how, packed=True), style, beside


def _fp4(tensor: StoredTensor, scale: StoredTensor) -> tuple[Shape, str] | None:
    """Find the shape and format of a weight with two values of 4 bits in a byte [.., in/2], and a
    scale for each group of them.
    """
    if tensor.dtype not in ("U8", "I8") or scale.dtype not in FP4_GROUPS:
        return None
    style, group = FP4_GROUPS[scale.dtype]
    if not tensor.shape or not scale.shape or 2 * tensor.shape[-1] != scale.shape[-1] * group:
        return None
    return (*tensor.shape[:-1], 2 * tensor.shape[-1]), style


def _mlx(tensor: StoredTensor, stem: str, stored: Stored, packing: Packing) -> Found:
    """Read a weight of MLX: words [.., out, in·bits/32], scales [.., out, in/group_size]."""
    scales, (bits, group) = stored[f"{stem}.scales"].shape, packing
    shape: Shape | None = None
    if bits and group and scales and tensor.shape and scales[:-1] == tensor.shape[:-1]:
        n_in = scales[-1] * group
        shape = (*scales[:-1], n_in) if tensor.shape[-1] * WORD == n_in * bits else None
    how = f"MLX, {bits} bits" if shape else "MLX, bits not known from header and config"
    beside = _present(stem + ".", BESIDE_MLX, stored)
    return _weight(tensor, tensor.name, shape, how, packed=True), "MLX", beside


def _mxfp4_blocks(tensor: StoredTensor, stored: Stored) -> Found | None:
    """Read a weight of gpt-oss: X_blocks [.., out, groups, 16] of two values a byte,
    X_scales [.., out, groups].
    """
    name = tensor.name.removesuffix("_blocks")
    scales = stored[f"{name}_scales"]
    if len(tensor.shape) < 2 or tensor.shape[:-1] != scales.shape or tensor.dtype != "U8":
        return None
    *outer, groups, n_bytes = tensor.shape
    shape = (*outer, groups * n_bytes * 2)  # 2 values of 4 bits in a byte
    return _weight(tensor, name, shape, "MXFP4", packed=True), "MXFP4", [scales.name]


def _bnb_4bit(tensor: StoredTensor, stored: Stored) -> Found:
    """Read a weight in bytes of two values each;
    its shape is among the values of quant_state, not in the header.
    """
    style = "bitsandbytes 4-bit"
    weight = Weight(
        name=tensor.name,
        shape=None,
        n_values=2 * tensor.n_bytes,  # or one less: the last byte of an odd count is half empty
        sources=(tensor.name,),
        dtype=tensor.dtype,
        how=style,
        packed=True,
    )
    return weight, style, _present(tensor.name + ".", BESIDE_BNB_4BIT, stored)


def _scaled(tensor: StoredTensor, stem: str | None, stored: Stored) -> Found | None:
    """Read a weight with one value in each stored one, beside a scale;
    or two of 4 bits in each byte.
    """
    beside = _present(tensor.name, AFTER_NAME, stored)
    if stem is not None:
        beside += _present(stem + ".", IN_MODULE, stored)
    if not beside:
        return None
    for scale in beside:
        found = _fp4(tensor, stored[scale])
        if found is not None:
            shape, style = found
            return (
                _weight(tensor, tensor.name, shape, style, packed=True),
                style,
                beside,
            )
    if tensor.dtype == "U8":  # bytes of an unknown format: nothing is certain
        how = "bytes with scales, format not known"
        return _weight(tensor, tensor.name, None, how, packed=True), "unknown", beside
    style = {"I8": "int8", "F4": "FP4"}.get(tensor.dtype, "FP8")
    return _weight(tensor, tensor.name, tensor.shape, style), style, beside
