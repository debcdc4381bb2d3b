"""What attention is given beside queries, keys and values: biases and masks, and who keeps them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import attention
from metacount.formulas.dim import Dim
from metacount.formulas.forward import (
    FLAG,
    MATH,
    SDPA,
    Attending,
    Kept,
    Pass,
    attention_of,
)
from metacount.formulas.kept_attention import CORE
from metacount.spec import ModelSpec
from metacount.spec.field import altered
from metacount.spec.mla import LatentAttention
from metacount.spec.position import Alibi, Learned, RelativeBuckets, TransformerXL
from metacount.spec.stack import WITH_ATTENTION

BIAS = ("bias",)


def handed_to_blocks(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """List what a checkpointed block is given beside its input and must keep as well."""
    positions, mixer = spec.positions, attention_of(spec)
    if isinstance(positions, RelativeBuckets | Alibi):
        assert mixer is not None  # a bias of scores belongs to attention
        width = 8 if isinstance(positions, Alibi) else run.widths.value
        return [_pairs("bias of each pair", mixer.n_heads * n * n, width)]
    if isinstance(positions, Learned) and positions.n_query_positions:
        return [_pairs("query positions", n * spec.d_model, run.widths.value)]
    return []


def _pairs(name: str, values: Dim, width: int) -> Kept:
    return Kept(role="position", name=name, values=values, width=width)


def attention_way(spec: ModelSpec, run: Pass, *, biased: bool | None = None) -> str:
    """Say how self-attention is run: as asked, or written out where sdpa has no kernel.

    torch's CPU has no fused kernel for values of another width than the keys', nor for a bias that
    has a gradient (`biased`; None: all is trained): its sdpa writes both products out then.

    >>> from metacount.catalog import entry
    >>> run = Pass(batch_size=1, seq_len=8, attention="sdpa")
    >>> [attention_way(entry(name).spec(), run) for name in ("gpt2", "t5-base", "deepseek-v3")]
    ['sdpa', 'math', 'math']
    """
    if run.attention != SDPA:
        return run.attention
    mixer, learned = attention_of(spec), isinstance(spec.positions, RelativeBuckets | TransformerXL)
    written = learned if biased is None else biased
    if isinstance(mixer, LatentAttention):
        keys, values = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim, mixer.v_head_dim
        if not isinstance(keys, int) or not isinstance(values, int):
            raise SpecError(
                "attention",
                "has no formula in letters for latent attention: its kernel depends on widths",
                SDPA,
                "choose eager or flash, or give numbers",
            )
        written = keys != values  # latent attention has no bias of scores
    return MATH if written else SDPA


def self_attending(spec: ModelSpec, run: Pass, n: Dim, *, biased: bool | None = None) -> Attending:
    """Describe the self-attention of a block over n positions, run as `attention_way` says."""
    return altered(run.attending(n, n), attention=attention_way(spec, run, biased=biased))


def masks_kept(spec: ModelSpec, attending: Attending) -> list[Kept]:
    """List what sdpa keeps of biases and masks in the self-attention of every block.

    A kernel keeps the mask that it is given, in the type of the queries: [S, T] after a prefix,
    [h, S, T] with a bias. A bias with a gradient keeps where it is hidden, a byte for each [S, T].

    Returns: terms, without windows, see `window_kept`.
    Source: torch's derivatives of `masked_fill` and of the kernel of its CPU.
    """
    positions, mixer = spec.positions, attention_of(spec)
    pairs = attending.n_queries * attending.n_keys
    if attending.attention not in (SDPA, MATH):
        return []
    learned = isinstance(positions, RelativeBuckets | TransformerXL)
    if attending.attention == MATH:
        hidden = attending.term("hidden pairs", pairs, width=FLAG, gradients=BIAS)
        return [hidden] if learned else []
    if learned or isinstance(positions, Alibi):
        assert mixer is not None  # a bias of scores belongs to attention
        return [attending.term("mask", mixer.n_heads * pairs, gradients=CORE)]
    if spec.kind == "prefix-decoder":
        return [attending.term("mask", pairs, gradients=CORE)]
    return []


def window_kept(spec: ModelSpec, run: Pass, n: Dim) -> list[Kept]:
    """List the mask that sdpa's kernel keeps in a block of `windowed_layers`: [S, T].

    ALiBi's bias is one mask with what the window hides, see `masks_kept`.

    Source: as `masks_kept`.
    """
    attending = self_attending(spec, run, n)
    masked = attending.attention == SDPA and not isinstance(spec.positions, Alibi)
    return [attending.term("mask", n * n, gradients=CORE)] if masked else []


def windowed_layers(spec: ModelSpec, n_layers: Dim) -> Dim:
    """Count the blocks of a stack that have the mask of a window, of `n_layers`.

    Where windows are chunks, those that see everything have a mask too.

    Source: `attention.windowed_layers`; `attention.lettered_layers`.
    """
    last = spec.last_stack
    window = last.attention.window
    if window is None:
        return 0
    if window.kind == "chunked":
        return attention.lettered_layers(n_layers, last.mixer_pattern, WITH_ATTENTION)
    return attention.windowed_layers(n_layers, last.seen)


def has_mask(spec: ModelSpec, index: int) -> bool:
    """Tell whether a block is one of `windowed_layers`."""
    window = spec.last_stack.attention.window
    if window is not None and window.kind == "chunked":
        return spec.last_stack.mixer_of(index) in WITH_ATTENTION
    return spec.is_windowed_layer(index)
