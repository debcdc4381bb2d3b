"""The field's short notation for parts of a model: GQA 32/8, silu(gate) · up."""

from __future__ import annotations


def heads(n_heads: int, n_kv_heads: int) -> str:
    """Name attention heads by how many share a key/value head.

    >>> heads(32, 32), heads(32, 8), heads(71, 1)
    ('MHA 32', 'GQA 32/8', 'MQA 71/1')
    """
    if n_kv_heads == n_heads:
        return f"MHA {n_heads}"
    return f"{'MQA' if n_kv_heads == 1 else 'GQA'} {n_heads}/{n_kv_heads}"


def latent_heads(n_heads: int, latent: int, rotated: int) -> str:
    """Name heads over one latent and one rotated key.

    >>> latent_heads(128, 512, 64)
    'MLA 128, latent 512 + 64'
    """
    return f"MLA {n_heads}, latent {latent} + {rotated}"


def activated(activation: str, swish_beta: float, *, gated: bool) -> str:
    """Write what stands between the matrices of a feed-forward.

    >>> activated("silu", 1.0, gated=True), activated("gelu", 1.0, gated=False)
    ('silu(gate) · up', 'gelu(up)')
    """
    if activation == "clamped_swiglu":
        return "clamped silu(gate) · (up + 1)"
    scaled = activation == "silu" and swish_beta != 1.0
    name = f"swish_{swish_beta:g}" if scaled else activation
    if not gated:
        return f"{name}(up)"
    return "gate · up" if name == "identity" else f"{name}(gate) · up"


def factor(number: float) -> str:
    """Write a factor as it stands before what it multiplies; nothing for 1.

    >>> factor(0.22), factor(1.0)
    ('0.22·', '')
    """
    return "" if number == 1.0 else f"{number:.4g}·"
