"""KV cache as an engine that serves a model reserves it: in blocks, for groups of layers alike.

A labelled estimate, apart from `kv_cache_bytes`, which is what has to be kept.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas.model import index_cache_values, kv_cache_values
from metacount.formulas.pieces import caching_layers, recurrent_layers
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Workload
from metacount.spec.attention import CompressedAttention, LatentAttention

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

ENGINES = ("vllm",)
BLOCK, LATENT_BLOCK = 16, 64  # tokens; of latents what vLLM sets for FlashMLA
FEW = 1.5  # kinds of layers whose numbers differ by less make groups of the larger (2025: 1.25)
VERSION = "vLLM V1, vllm/v1/core/kv_cache_utils.py as of 2026"


@frozen
class Reserved:
    """What an engine reserves for a workload, and by which rule."""

    engine: str
    kv_dtype: str
    kv_cache_bytes: int
    kv_cache_bytes_per_token: int
    block_tokens: int
    rule: str

    def to_dict(self) -> Json:
        """Return plain data."""
        return dict(vars(self))


def reserved_cache(spec: ModelSpec, run: Workload, engine: str, kv_dtype: str) -> Reserved:
    """Count the KV cache that an engine reserves for `run`, whose sequences fill their length.

    vLLM cuts layers that are alike (with a window, without) into groups of one size, the smaller of
    the two numbers, unless the larger is less than 1.5 times it; the last group is filled up. All
    groups have pages of one size, so that a windowed layer is reserved full-size pages.

    >>> from metacount.catalog import entry
    >>> run = Workload(batch_size=32, seq_len=8192)
    >>> reserved_cache(entry("gpt-oss-20b").spec(), run, "vllm", "bf16").kv_cache_bytes / 2**30
    12.0
    """
    if spec.kind == "encoder" or spec.has_encoder:
        raise SpecError("engine", "has a rule for decoders alone", engine, "leave it out")
    if recurrent_layers(spec):
        why = "has no rule here for recurrent states, whose pages vLLM makes one with attention's"
        raise SpecError("engine", why, engine, "leave it out: kv_cache_bytes and state_bytes")
    if isinstance(spec.last_stack.attention, CompressedAttention):
        why = "has no rule here for compressed entries, of which a page holds fewer"
        raise SpecError("engine", why, engine, "leave it out: kv_cache_bytes")
    if spec.last_stack.windows_differ:
        why = "has no rule here for pages of layers whose heads are not alike"
        raise SpecError("engine", why, engine, "leave it out: kv_cache_bytes")
    block = LATENT_BLOCK if isinstance(spec.last_stack.attention, LatentAttention) else BLOCK
    kinds = [n for n in map(int, caching_layers(spec)) if n]
    least, most = min(kinds), max(kinds)
    group = most if most < FEW * least else least
    n_layers = sum(-(-n // group) * group for n in kinds)
    each = n_layers * int(kv_cache_values(spec)) + int(index_cache_values(spec))
    per_token = each * DTYPE_BYTES[kv_dtype]
    n_tokens = -(-run.seq_len // block) * block
    padding = n_layers - sum(kinds)
    filled = f", {padding} of them filled up" if padding else ""
    groups = f"{n_layers // group} groups of {group} layers{filled}" if len(kinds) > 1 else ""
    of_kernel = " (FlashMLA's; CUTLASS_MLA takes 128)" if block == LATENT_BLOCK else ""
    rule = f"{VERSION}: blocks of {block} tokens{of_kernel}, {groups or 'layers that are alike'}"
    return Reserved(
        engine=engine,
        kv_dtype=kv_dtype,
        kv_cache_bytes=run.batch_size * n_tokens * per_token,
        kv_cache_bytes_per_token=per_token,
        block_tokens=block,
        rule=rule + (", windows at full pages" if len(kinds) > 1 else ""),
    )
