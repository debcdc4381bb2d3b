"""What an operator costs: priced ones by their shapes, free ones by name, the rest an error.

One multiply-add is two FLOPs. Priced are matrix products and convolutions, torch's own convention;
elementwise work, reductions, softmax, sorting and copies are free by that convention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from metacount.errors import InputError, shown
from metacount.measure.torch_private import operator_name, returns_its_input

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload, OpOverloadPacket

aten = torch.ops.aten


class UncountedOp(LookupError):
    """An operator that is neither priced nor known to be free: its cost would silently be 0."""


def _product(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _mm(a: Tensor, b: Tensor, *_: object) -> int:
    # [..., n, k] @ [..., k, m]: 2 FLOPs per multiply-add
    return 2 * _product(a.shape) * b.shape[-1]


def _addmm(_bias: Tensor, a: Tensor, b: Tensor, *_: object) -> int:
    return _mm(a, b)


def _mv(a: Tensor, b: Tensor, *_: object) -> int:
    # [n, k] @ [k], or [k] · [k]
    return 2 * a.numel()


def _addmv(_bias: Tensor, a: Tensor, b: Tensor, *_: object) -> int:
    return _mv(a, b)


def _grouped_mm(a: Tensor, b: Tensor, *_: object) -> int:
    # rows grouped by expert: [n, k] @ [e, k, m], every row meets one matrix
    if a.dim() == 2 and b.dim() == 3:
        return 2 * a.shape[0] * a.shape[1] * b.shape[-1]
    if a.dim() == 3 and b.dim() == 3:
        return _mm(a, b)
    if a.dim() == 2 and b.dim() == 2:
        # the columns of a and the rows of b are grouped: [n, k] @ [k, m], each k in one expert
        return _mm(a, b)
    raise UncountedOp(f"_grouped_mm of shapes {tuple(a.shape)} and {tuple(b.shape)}")


GROUPED = aten._grouped_mm


def grouped_result(
    a: Tensor,
    b: Tensor,
    ends: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Make the empty result of a grouped product: torch's own kernel on meta takes bf16 alone.

    Of the forms that have a price.
    """
    shape = [*a.shape[:-1], b.shape[-1]]
    if a.dim() == b.dim() == 2:
        assert ends is not None  # torch's signature allows None, its kernels do not
        shape.insert(0, ends.shape[0])
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def grouped_refusal(a: Tensor, b: Tensor) -> str:
    """Say what of two matrices torch's grouped product takes on no device; empty if nothing.

    It takes values of 16 and 32 bits, in rows (or columns) of whole 16 bytes.
    """
    if a.dtype == torch.float64:
        return "float64"
    size = a.element_size()
    # of a symbol nothing is asked that no figure depends on
    steps = [n for t in (a, b) for n in t.stride()[-2:] if isinstance(n, int) and n > 1]
    odd = next((n for n in steps if n * size % 16), None)
    return f"rows of {odd} values, which are no whole 16 bytes" if odd else ""


# Elementwise operators whose results on meta are made here: torch makes them by functions in Python
# that take five times as long. Of floats, in one type; of two tensors in the wider one.
OF_ONE = frozenset((
    aten.rsqrt.default, aten.pow.Tensor_Scalar, aten.gelu.default, aten.silu.default,
    aten.sigmoid.default, aten.tanh.default, aten.cos.default, aten.sin.default,
    aten.exp.default, aten.neg.default, aten.relu.default, aten.softplus.default,
))  # fmt: skip
OF_TWO = frozenset((aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor))
MEAN = aten.mean.dim
WHOLE_TENSORS = (Tensor, torch.nn.Parameter)  # no class that has a dispatch of its own


def empty_result(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Make the empty result of elementwise work on meta, as torch does; None where torch is to.

    Of contiguous tensors alone, whose result is contiguous, too.
    """
    x = args[0] if op in OF_ONE or op in OF_TWO or op is MEAN else None
    if not _is_plain(x):
        return None
    if op in OF_ONE:
        return x.new_empty(x.shape)
    if kwargs:  # a type, or a factor
        return None
    if op is MEAN:
        if args[2:] != (True,) or len(args[1]) != 1:
            return None
        sizes = list(x.shape)
        sizes[args[1][0]] = 1
        return x.new_empty(sizes)
    y = args[1]
    if type(y) is float or type(y) is int:
        return x.new_empty(x.shape)
    if not _is_plain(y):
        return None
    shape = x.shape if x.shape == y.shape else torch.broadcast_shapes(x.shape, y.shape)
    return x.new_empty(shape, dtype=torch.result_type(x, y))


def _is_plain(x: Any) -> TypeGuard[Tensor]:
    plain = type(x) in WHOLE_TENSORS and x.is_meta
    return plain and x.is_floating_point() and x.is_contiguous()


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: object) -> int:
    # [b, h, s, d] @ [b, h, d, t], then [b, h, s, t] @ [b, h, t, u]; fewer key heads repeat
    b, h, s, d = q.shape
    return 2 * b * h * s * k.shape[-2] * (d + v.shape[-1])


def _convolution(x: Tensor, w: Tensor, *_: object, out: Tensor, transposed: bool) -> int:
    # each output value (input value where transposed) meets a kernel of w.shape[1:]
    return 2 * (x if transposed else out).numel() * _product(w.shape[1:])


def _solve_triangular(a: Tensor, b: Tensor, *_: object) -> int:
    # [n, n] against each of k columns: row i takes i multiply-adds, n·(n-1)/2 in all
    n, k = a.shape[-1], b.shape[-2] * b.shape[-1] // a.shape[-1]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return 2 * _product(batch) * k * (n * (n - 1) // 2)


def _attention_backward(_grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> int:
    # the scores once more, which were not kept, then the gradients of v, of the weights, of q, of k
    b, h, s, d = q.shape
    return 2 * b * h * s * k.shape[-2] * (3 * d + 2 * v.shape[-1])


PRICED: dict[OpOverloadPacket, Callable[..., int]] = {
    aten.mm: _mm,
    aten.bmm: _mm,
    aten._int_mm: _mm,
    aten.addmm: _addmm,
    aten.baddbmm: _addmm,
    aten.mv: _mv,
    aten.dot: _mv,
    aten.vdot: _mv,
    aten.addmv: _addmv,
    GROUPED: _grouped_mm,
    aten.linalg_solve_triangular: _solve_triangular,
    aten.scaled_dot_product_attention: _attention,
    aten._scaled_dot_product_efficient_attention: _attention,
    aten._scaled_dot_product_flash_attention: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_cudnn_attention: _attention,
    aten._scaled_dot_product_attention_math: _attention,
    aten._scaled_dot_product_attention_math_for_mps: _attention,
    aten._scaled_dot_product_fused_attention_overrideable: _attention,
}

PRICED |= dict.fromkeys(
    (
        aten._scaled_dot_product_flash_attention_backward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
        aten._scaled_dot_product_efficient_attention_backward,
        aten._scaled_dot_product_cudnn_attention_backward,
        aten._scaled_dot_product_fused_attention_overrideable_backward,
    ),
    _attention_backward,
)

CONVOLUTIONS = (aten.convolution, aten._convolution)

FREE = {
    # made, copied, moved
    aten.arange, aten.empty, aten.empty_like, aten.empty_strided, aten.zeros, aten.zeros_like,
    aten.ones, aten.ones_like, aten.full, aten.full_like, aten.scalar_tensor, aten.new_zeros,
    aten.new_ones, aten.new_full, aten.new_empty, aten.new_empty_strided, aten.lift_fresh,
    aten.clone, aten._to_copy, aten.copy, aten.copy_, aten.fill, aten.fill_, aten.zero_,
    aten.transpose_, aten.t_, aten.squeeze_, aten.unsqueeze_, aten.linspace,
    aten.cat, aten.stack, aten.repeat, aten.repeat_interleave, aten.roll, aten.flip, aten.tril,
    aten.triu, aten.constant_pad_nd, aten._unsafe_view, aten.eye, aten.im2col, aten.complex,
    # looked up and put back
    aten.embedding, aten.gather, aten.scatter, aten.scatter_, aten.scatter_add, aten.scatter_add_,
    aten.index, aten.index_put, aten.index_put_, aten.index_select, aten.index_add,
    aten.index_add_, aten.masked_fill, aten.masked_fill_, aten.masked_scatter, aten.bincount,
    aten.histc, aten.nonzero, aten.one_hot, aten.where, aten.scatter_reduce, aten.searchsorted,
    # reduced, normalised, ordered
    aten.sum, aten.mean, aten.amax, aten.amin, aten.max, aten.min, aten.any, aten.all, aten.prod,
    aten.argmax, aten.argmin, aten.cumsum, aten.floor_divide, aten.var, aten.var_mean, aten.std,
    aten.linalg_vector_norm,
    aten._softmax, aten._safe_softmax, aten._log_softmax, aten.logsumexp, aten.native_layer_norm,
    aten.native_group_norm, aten._fused_rms_norm, aten.topk, aten.sort, aten.argsort,
    aten.avg_pool2d, aten.max_pool2d_with_indices, aten.cumprod, aten._is_all_true,
    aten.native_batch_norm, aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training, aten._adaptive_avg_pool2d,
    aten._adaptive_avg_pool3d, aten.adaptive_max_pool2d, aten.avg_pool3d,
    aten.max_pool3d_with_indices, aten.upsample_nearest1d, aten.upsample_nearest2d,
    aten.upsample_bilinear2d, aten.upsample_bicubic2d, aten.reflection_pad1d,
    aten.reflection_pad2d, aten.replication_pad1d, aten.replication_pad2d, aten.grid_sampler_2d,
    aten.pixel_shuffle, aten.median, aten.mode, aten.std_mean, aten.kthvalue, aten.cummax,
    aten.cummin, aten.logcumsumexp, aten.channel_shuffle, aten.unsafe_split,
    aten.unsafe_split_with_sizes, aten.fractional_max_pool2d, aten.adaptive_max_pool3d,
    aten.pixel_unshuffle, aten.upsample_linear1d, aten.upsample_trilinear3d,
    aten.upsample_nearest3d, aten._embedding_bag, aten.col2im, aten.max_unpool2d,
    # elementwise without torch's tag; transforms are no matrix products by that convention
    aten.hardswish, aten._prelu_kernel, aten.rrelu_with_noise, aten.glu,
    aten.polar, aten.log_sigmoid_forward, aten._fft_c2c, aten._fft_r2c,
    # backward of what is free
    aten.embedding_dense_backward, aten._softmax_backward_data, aten._log_softmax_backward_data,
    aten.native_layer_norm_backward, aten.native_group_norm_backward, aten.gelu_backward,
    aten._fused_rms_norm_backward, aten.nll_loss_forward, aten.nll_loss_backward,
    aten.nll_loss2d_forward, aten.nll_loss2d_backward, aten.select_backward, aten.slice_backward,
    aten.value_selecting_reduction_backward, aten.native_dropout_backward,
    aten.native_batch_norm_backward, aten.unfold_backward, aten.masked_select, aten.linalg_cross,
    aten._prelu_kernel_backward, aten.softplus_backward, aten.elu_backward, aten.glu_backward,
    aten.log_sigmoid_backward, aten.hardswish_backward, aten.rrelu_with_noise_backward,
    aten.avg_pool2d_backward, aten.max_pool2d_with_indices_backward, aten.im2col, aten.col2im,
    aten._embedding_bag_backward, aten.upsample_bilinear2d_backward,
    # drawn at random
    aten.rand, aten.randn, aten.randint, aten.uniform_, aten.normal_, aten.bernoulli,
    aten.bernoulli_, aten.multinomial, aten.native_dropout,
    # read out
    aten._local_scalar_dense, aten.equal, aten.is_same_size,
}  # fmt: skip


def is_free(op: OpOverload) -> bool:
    """Tell whether an operator is elementwise, a view, or in the list of free ones."""
    return op.overloadpacket in FREE or _is_free_by_kind(op)


@cache
def _is_free_by_kind(op: OpOverload) -> bool:
    # `_foreach_`: elementwise work over a list of tensors
    elementwise = torch.Tag.pointwise in op.tags or operator_name(op).startswith("aten::_foreach_")
    return elementwise or returns_its_input(op)


def flops_of(op: OpOverload, args: tuple[Any, ...], out: Any) -> int:
    """Count the FLOPs of one call; raise `UncountedOp` for an operator that nobody priced."""
    packet = op.overloadpacket
    price = PRICED.get(packet)
    if price is not None:
        return price(*args)
    if packet in CONVOLUTIONS:
        return _convolution(args[0], args[1], out=out, transposed=bool(args[6]))
    if packet is aten.convolution_backward:
        # one convolution for each of the gradients of input and weight that is asked for
        forward = _convolution(args[1], args[2], out=args[0], transposed=bool(args[7]))
        return forward * (int(args[10][0]) + int(args[10][1]))
    if is_free(op):
        return 0
    shapes = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
    raise UncountedOp(f"{op} of shapes {shapes}: neither priced nor known to be free")


def multiplies(op: OpOverload) -> bool:
    """Tell whether an operator is a matrix product or a convolution."""
    return op.overloadpacket in PRICED or op.overloadpacket in CONVOLUTIONS


def price(op: Any, flops: Callable[..., int] | int) -> None:
    """Say what an operator costs: a function of its arguments, or 0 for one that is free.

    `op` is a packet (`torch.ops.mine.product`) or an overload of it.
    """
    packet = getattr(op, "overloadpacket", op)
    if not hasattr(packet, "overloads"):
        raise InputError(f"an operator is torch.ops.NAMESPACE.NAME: got {shown(repr(op))}")
    if callable(flops):
        PRICED[packet] = flops
    elif flops == 0 and type(flops) is int:
        FREE.add(packet)
    else:
        raise InputError(f"a price is a function of the arguments, or 0: got {shown(repr(flops))}")
