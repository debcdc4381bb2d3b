"""Counts to be drawn beside each other: a quantity by its parts, caches by kind of attention."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import pieces, sublayers
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.spec.attention import CompressedAttention, LatentAttention, NoAttention
from metacount.textbook.closed_form import FORWARD
from metacount.textbook.count import count, run_sizes

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import Request

LENGTHS = tuple(2**power for power in range(10, 18))  # 1k to 128k tokens
GROUPS = 8  # key/value heads of many published models, where a model has no groups of its own


def by_part(spec: ModelSpec, run: Workload, quantity: str) -> dict[str, int]:
    """Compute one quantity of one model by its parts, those of 0 left out.

    >>> from metacount.catalog import entry
    >>> by_part(entry("llama-7b").spec(), Workload(), "kv_cache_bytes")
    {'self-attention': 1073741824}
    """
    return {part: n for part, n in FORWARD[quantity](spec, run_sizes(spec, run)).items() if n}


@frozen
class Bar:
    """What one bar shows: a model at some sizes (`label` says which) and what it runs."""

    model: str
    label: str
    run: Workload
    parts: dict[str, int]
    warnings: tuple[str, ...]

    def to_dict(self) -> Json:
        """Convert the bar to plain data."""
        return {
            "model": self.model,
            "label": self.label,
            "workload": self.run.to_dict(),
            "parts": self.parts,
            "total": sum(self.parts.values()),
            "warnings": list(self.warnings),
        }


def bars(
    models: Sequence[tuple[str, Model]], requests: Sequence[Workload | Request], quantity: str
) -> list[Bar]:
    """Make a bar for each model, under its label, and each request."""
    rows = []
    for label, model in models:
        for request in requests:
            result = count(model.spec, request)
            parts = by_part(model.spec, result.workload, quantity)
            rows.append(
                Bar(
                    model=model.name,
                    label=label,
                    run=result.workload,
                    parts=parts,
                    warnings=result.warnings,
                )
            )
    return rows


@frozen
class Cache:
    """What one kind of attention keeps of each token, in all layers, and of which sizes it is.

    `own` is the kind that the model has.
    """

    kind: str
    sizes: dict[str, int]
    bytes_per_token: int
    own: bool

    def to_dict(self) -> Json:
        """Convert the cache to plain data."""
        return dict(vars(self))


def caches(spec: ModelSpec, dtype: str) -> tuple[Cache, ...]:
    """Compute the caches of MHA, GQA, MQA and MLA in a model's place of attention;
    every layer keeps every token.

    Heads are as many and as wide as the model's own; where that is MLA, as wide as its values.
    Where the model has no groups: 8 key/value heads, if 8 divides its heads, else the fewest that
    do. Where it has no latent: DeepSeek-V2's proportions, d_c = 4·h_d and d_r = h_d/2.

    Source: DeepSeek-V2, arXiv:2405.04434, table 1 and sec. 3.1.2, for the proportions.

    >>> from metacount.catalog import entry
    >>> [(c.kind, c.bytes_per_token) for c in caches(entry("llama3-8b").spec(), "bf16")]
    [('MHA', 524288), ('GQA', 131072), ('MQA', 16384), ('MLA', 36864)]
    """
    if spec.kind == "encoder":
        raise SpecError("kind", "keeps no cache", spec.kind, "choose a decoder")
    mixer = spec.last_stack.attention
    if isinstance(mixer, NoAttention):
        rule = "is none: there are no keys and values"
        raise SpecError("attention", rule, "none", "choose a model with attention")
    if isinstance(mixer, CompressedAttention):
        rule = "keeps entries of many tokens: no kind of attention here does"
        raise SpecError("attention", rule, mixer.word, "choose another model")
    if mixer.window is not None and mixer.window.own:
        name, value = next(iter(mixer.window.own.items()))
        rule = "leaves layers whose heads are not alike: no kind of attention is that of all"
        raise SpecError(f"{name}_windowed", rule, value, "choose another model")
    h = mixer.n_heads
    if isinstance(mixer, LatentAttention):
        width, own = mixer.v_head_dim, "MLA"
        latent, rotated, groups = mixer.kv_lora_rank, mixer.qk_rope_head_dim, h
    else:
        width, groups = mixer.head_dim, mixer.n_kv_heads
        own = "MHA" if groups == h else "MQA" if groups == 1 else "GQA"
        latent, rotated = 4 * width, width // 2
    if own != "GQA":
        groups = GROUPS if h % GROUPS == 0 and h > GROUPS else _fewest(h)
    token_bytes = sum(pieces.attention_layers(spec)) * DTYPE_BYTES[dtype]
    kinds = [
        (kind, {"h_kv": heads, "h_d": width}, sublayers.kv_cache_values(heads, width))
        for kind, heads in (("MHA", h), ("GQA", groups), ("MQA", 1))
        if kind != "GQA" or 1 < heads < h  # a prime number of heads, or one, has no groups
    ]
    values = sublayers.mla_kv_cache_values(latent, rotated)
    kinds.append(("MLA", {"d_c": latent, "d_r": rotated}, values))
    return tuple(
        Cache(kind=kind, sizes=sizes, own=kind == own, bytes_per_token=token_bytes * values)
        for kind, sizes, values in kinds
    )


def _fewest(heads: int) -> int:
    """Find the smallest number above 1 that divides `heads`; 1 for one head."""
    return next((n for n in range(2, heads + 1) if heads % n == 0), heads)
