"""How parts of a model are made, in a few words and as multiples of its width."""

from __future__ import annotations

from fractions import Fraction

from metacount.formulas import attention
from metacount.notation import heads, latent_heads
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention
from metacount.spec.mla import LatentAttention


def attention_described(spec: ModelSpec) -> str:
    """How an attention is made, with the window that some of its layers see."""
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        said = latent_heads(mixer.n_heads, mixer.kv_lora_rank, mixer.qk_rope_head_dim)
    elif isinstance(mixer, Attention):
        said = heads(mixer.n_heads, mixer.n_kv_heads)
    else:
        return "none"
    if mixer.window is None:
        return said
    near = attention.windowed_layers(spec.last_stack.n_layers, spec.last_stack.seen)
    return f"{said}, window {mixer.window.size} in {near} layers"


def times_d(width: int, spec: ModelSpec) -> str:
    """A width as a multiple of d, exact or to four digits.

    >>> from metacount.catalog import entry
    >>> times_d(11008, entry("llama-7b").spec()), times_d(3072, entry("gpt2").spec())
    ('2.688·d', '4·d')
    """
    ratio = Fraction(width, spec.d_model)
    return f"{ratio.numerator}·d" if ratio.denominator == 1 else f"{float(ratio):.4g}·d"
