"""What a KV cache keeps, part by part, each in letters with a name for people."""

from __future__ import annotations

from metacount.check.given.vocabulary import BYTES_LETTER
from metacount.check.parts.params import Letters, Part
from metacount.formulas import masks, model, pieces


def cache_parts(letters: Letters) -> list[Part]:
    """List every part of `kv_cache_bytes`."""
    o = letters.of
    if o.kind == "encoder":
        return []
    windowed, full = letters.windowed_and_full
    window = o.last_stack.attention.window
    size = None if window is None else window.size
    near = masks.cached_positions(letters.seq, size)
    cached = model.cached_tensors(o)
    found = []
    for word, n_layers, kept in (("windowed layers: ", windowed, near), ("", full, letters.seq)):
        if n_layers == 0:
            continue
        scale = letters.batch * BYTES_LETTER * n_layers
        label = word or ("global layers: " if windowed != 0 else "")
        for tensor in cached:
            one = scale * tensor.size
            variants = []
            if word:
                seen = masks.attended_positions(letters.seq, size)
                variants = [
                    ("the window is ignored", one * letters.seq),
                    ("a window of w positions is kept, not w - 1", one * seen),
                ]
            found.append(Part(name=label + tensor.name, expr=one * kept, variants=tuple(variants)))
    n_indexed = pieces.indexed_layers(o, o.n_layers)
    if n_indexed != 0:
        scale = letters.batch * BYTES_LETTER * n_indexed * letters.seq
        of_index = model.cached_tensors(o, indexed=True)[len(cached) :]
        found += [Part(name=tensor.name, expr=scale * tensor.size) for tensor in of_index]
    if o.has_encoder:
        scale = letters.batch * BYTES_LETTER * o.n_layers * letters.source
        found += [
            Part(name=f"cross-attention {tensor.name}", expr=scale * tensor.size)
            for tensor in cached
        ]
    return found


def state_parts(letters: Letters) -> list[Part]:
    """List every part of `state_bytes`."""
    by_part = model.state_bytes_by_part(
        letters.of, batch_size=letters.batch, bytes_per_value=BYTES_LETTER
    )
    return [Part(name=f"{name} state", expr=expr) for name, expr in by_part.items()]
