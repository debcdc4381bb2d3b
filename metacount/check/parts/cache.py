"""What a KV cache keeps, part by part, each in letters with a name for people."""

from __future__ import annotations

from typing import Any

from metacount.check.given.vocabulary import BYTES_LETTER
from metacount.check.parts.params import Letters, Part
from metacount.formulas import attention


def cache_parts(letters: Letters) -> list[Part]:
    """Every part of `kv_cache_bytes`."""
    o = letters.of
    if o.kind == "encoder":
        return []
    windowed, full = letters.windowed_and_full
    near = attention.cached_positions(letters.seq, o.window)
    found = []
    for word, n_layers, kept in (("windowed layers: ", windowed, near), ("", full, letters.seq)):
        if n_layers == 0:
            continue
        scale = letters.batch * BYTES_LETTER * n_layers
        label = word or ("global layers: " if windowed != 0 else "")
        for name, values in _kept(letters):
            variants = []
            if word:
                seen = attention.attended_positions(letters.seq, o.window)
                variants = [
                    ("the window is ignored", scale * values * letters.seq),
                    ("a window of w positions is kept, not w - 1", scale * values * seen),
                ]
            found.append(Part(name=label + name, expr=scale * values * kept,
                              variants=tuple(variants)))  # fmt: skip
    if o.has_encoder:
        scale = letters.batch * BYTES_LETTER * o.n_layers * letters.source
        found += [Part(name="cross-attention " + name, expr=scale * values)
                  for name, values in _kept(letters)]  # fmt: skip
    return found


def _kept(letters: Letters) -> list[tuple[str, Any]]:
    o = letters.of
    if o.attention == "mla":
        return [("latents", o.kv_lora_rank), ("rotated keys", o.qk_rope_head_dim)]
    return [("keys", o.n_kv_heads * o.head_dim), ("values", o.n_kv_heads * o.head_dim)]
