"""How the parts of a model are described in a few words."""

from __future__ import annotations

from fractions import Fraction

from metacount.formulas import ends, pieces
from metacount.notation import heads, latent_heads
from metacount.spec import ModelSpec
from metacount.spec.attention import Attention, LatentAttention
from metacount.spec.ffn import Mixture


def attention_described(spec: ModelSpec) -> str:
    """Describe how an attention is made, with the window that some of its layers see."""
    mixer = spec.last_stack.attention
    if isinstance(mixer, LatentAttention):
        said = latent_heads(mixer.n_heads, mixer.kv_lora_rank, mixer.qk_rope_head_dim)
    elif isinstance(mixer, Attention):
        said = heads(mixer.n_heads, mixer.n_kv_heads)
    else:
        return "none"
    if mixer.window is None:
        return said
    near = pieces.windowed_layers(spec.last_stack.n_layers, spec.last_stack.seen)
    return f"{said}, window {mixer.window.size} in {near} layers"


def mixture_described(mixture: Mixture, activation: str) -> str:
    """Describe how many experts of which width a token gets."""
    said = f"{mixture.top_k} of {mixture.n_experts} experts of width {mixture.d_ff}, {activation}"
    if mixture.shared is not None:
        said += f", {mixture.shared.n_experts} shared"
    if mixture.zero is not None:
        said += f", {mixture.zero.n_experts} zero experts"
        said += " with rows that nobody reads" if mixture.zero.rows else ""
    return said


def table_described(spec: ModelSpec) -> str:
    """Describe the shape of the token table."""
    return f"[{spec.vocab_size}, {ends.table_width(spec)}]"


def times_d(width: int, spec: ModelSpec) -> str:
    """Write a width as a multiple of d, exact or to four digits.

    >>> from metacount.catalog import entry
    >>> times_d(11008, entry("llama-7b").spec()), times_d(3072, entry("gpt2").spec())
    ('2.688·d', '4·d')
    """
    ratio = Fraction(width, spec.d_model)
    return f"{ratio.numerator}·d" if ratio.denominator == 1 else f"{float(ratio):.4g}·d"
