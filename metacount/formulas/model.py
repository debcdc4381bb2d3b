"""A whole model: its blocks, as many as there are of each kind, and its two ends.

>>> from metacount.spec import ModelSpec
>>> llama = ModelSpec(
...     kind="decoder", d_model=4096, n_layers=32, vocab_size=32000, n_heads=32, n_kv_heads=32,
...     head_dim=128, d_ff=11008, activation="silu", gated=True, norm="rmsnorm", position="rope")
>>> params(llama)  # LLaMA-7B
6738415616
>>> params_by_role(llama)  # doctest: +NORMALIZE_WHITESPACE
{'embedding': 131072000, 'position': 0, 'attention': 2147483648, 'recurrent': 0,
 'ffn': 4328521728, 'moe': 0, 'norm': 266240, 'head': 131072000, 'other': 0}
>>> active_params(llama), active_params_no_embed(llama), buffers(llama)
(6738415616, 6607343616, {'selection_bias': 0})
>>> matmul_flops(llama, batch_size=1, seq_len=128)
1700001742848
>>> causal_matmul_flops(llama, batch_size=1, seq_len=128)
1695740329984
>>> decode_matmul_flops(llama, batch_size=1, kv_len=128)
13281263616
>>> kv_cache_bytes_per_token(llama, bytes_per_value=2)
524288
>>> kv_cache_bytes(llama, batch_size=1, seq_len=2048, bytes_per_value=2)
1073741824

Sizes may be symbols (`spec.substituted`); the structure - kinds and flags - is always concrete.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import pieces
from metacount.formulas.block import Given, Layer, run_attention
from metacount.formulas.compressed import ENTRIES, cached_values, entry_pairs
from metacount.formulas.dim import Dim, exact_div, is_zero, smaller
from metacount.formulas.ends import TABLE
from metacount.formulas.masks import cached_positions, self_attention_pairs
from metacount.formulas.pieces import (
    counts_of,
    nominal_pieces,
    products_of_pieces,
    remembered,
    run_of,
    stream,
    weights_of_pieces,
)
from metacount.formulas.tape import (
    PAIRS,
    TOKENS,
    WINDOWED_PAIRS,
    Pass,
    Product,
    State,
    Tape,
    Weight,
    by_role,
)
from metacount.spec import ModelSpec
from metacount.spec.attention import CompressedAttention, NoAttention

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROLES = ("embedding", "position", "attention", "recurrent", "ffn", "moe", "norm", "head", "other")


def weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List every tensor of the model, each kind once with the number of its copies."""
    return tuple(remembered(spec, "weights", lambda: weights_of_pieces(spec, nominal_pieces(spec))))


def products(spec: ModelSpec, *, decode: bool = False) -> tuple[Product, ...]:
    """List every product of activations that a forward, or one step of decoding, computes."""
    return tuple(
        remembered(
            spec,
            f"products {decode}",
            lambda: products_of_pieces(nominal_pieces(spec, decode=decode)),
        )
    )


def cached_tensors(
    spec: ModelSpec, *, indexed: bool = False, windowed: bool = False
) -> tuple[State, ...]:
    """List what one token leaves in the cache of one block's self-attention, tensor by tensor."""
    if isinstance(spec.last_stack.attention, NoAttention):
        return ()
    tape = Tape(run_of(spec, Pass(batch_size=1, seq_len=1)))
    layer = Layer(indexed=indexed, windowed=windowed)
    run_attention(tape, spec, layer, stream(tape, spec, TOKENS), Given())
    return tuple(tape.cached)


def kv_cache_values(spec: ModelSpec, *, windowed: bool = False) -> Dim:
    """Count the values that one token leaves in the cache of one block's self-attention.

    Of one that sees everything, or is `windowed`. Without those of a block indexer, which not every
    block has.
    """
    return sum(tensor.size for tensor in cached_tensors(spec, windowed=windowed))


def _values_of_layers(spec: ModelSpec, windowed: Dim, full: Dim) -> Dim:
    """Count the values of so many tokens, or layers, with a window and without."""
    each = kv_cache_values(spec)
    if not spec.last_stack.windows_differ:
        return each * (windowed + full)
    return windowed * kv_cache_values(spec, windowed=True) + full * each


def _shared_index_values(spec: ModelSpec) -> Dim:
    """Count the values of a token that blocks do not keep, which have no indexer of their own."""
    n_sharing = pieces.sharing_layers(spec, spec.last_stack.n_layers)
    return 0 if is_zero(n_sharing) else n_sharing * cached_tensors(spec)[-1].size


def index_cache_values(spec: ModelSpec) -> Dim:
    """Count the values that one token leaves in the caches of all block indexers."""
    n = pieces.indexed_layers(spec, spec.last_stack.n_layers)
    if is_zero(n):
        return 0
    with_index = sum(tensor.size for tensor in cached_tensors(spec, indexed=True))
    return n * (with_index - kv_cache_values(spec))


def compressed_cache_values(spec: ModelSpec, part: CompressedAttention, seq_len: Dim) -> Dim:
    """Count the values that all layers of compressed attention keep of one sequence.

    Of the window a key a token, which is its value; transformers keeps values beside it in layers
    that have a window alone.
    """
    assert part.window is not None  # the spec requires it
    near, n = cached_positions(seq_len, part.window.size), spec.last_stack.n_layers
    return sum(
        pieces.lettered_layers(n, part.pattern, letter)
        * (
            near * part.head_dim * (2 if letter == "L" else 1)
            + cached_values(part, letter, seq_len)
        )
        for letter in sorted(set(part.pattern))
    )


def kv_cache_bytes_per_token(spec: ModelSpec, *, bytes_per_value: Dim) -> Dim:
    """Count the bytes one token writes into all layers' self-attention caches; 0 for an encoder.

    Windowed layers write too, they only forget later. Cross-attention writes nothing per token, nor
    do layers that read the keys and values of others. The keys of an index are among them. Of
    compressed attention it is what the first token leaves: entries of many tokens are in no one's.
    """
    if spec.kind == "encoder":
        return 0
    if isinstance(spec.last_stack.attention, CompressedAttention):
        one = compressed_cache_values(spec, spec.last_stack.attention, 1)
        return one * bytes_per_value
    windowed, full = pieces.caching_layers(spec)
    values = _values_of_layers(spec, windowed, full) + index_cache_values(spec)
    values -= _shared_index_values(spec)
    return values * bytes_per_value


def kv_cache_bytes_by_part(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    bytes_per_value: Dim,
    source_len: Dim | None = None,
) -> dict[str, Dim]:
    """Count the bytes that must be kept after seq_len tokens to go on, by kind of attention.

    A windowed layer keeps window - 1 positions at most. With an encoder, the keys and values of
    its source_len (None: seq_len) outputs are kept in every decoder layer too. Nothing of what a
    selection passes over can be dropped: a later token may choose it.

    Returns: bytes of self-attention and of cross-attention; 0 for an encoder.
    """
    if spec.kind == "encoder":
        return {"self-attention": 0, "cross-attention": 0}
    windowed, full = pieces.caching_layers(spec)
    window = spec.last_stack.attention.window
    near = cached_positions(seq_len, None if window is None else window.size)
    part = spec.last_stack.attention
    if isinstance(part, CompressedAttention):
        values = compressed_cache_values(spec, part, seq_len)
    else:
        values = _values_of_layers(spec, windowed * near, full * seq_len)
        values += (index_cache_values(spec) - _shared_index_values(spec)) * seq_len
    crossed = 0
    if spec.has_encoder:
        each = kv_cache_values(spec)
        crossed = spec.last_stack.n_layers * each * (seq_len if source_len is None else source_len)
    price = batch_size * bytes_per_value
    return {"self-attention": values * price, "cross-attention": crossed * price}


def states(spec: ModelSpec) -> tuple[State, ...]:
    """List what the mixer with a state of one block keeps of one sequence, by name."""
    by_name = {state.name: state for piece in nominal_pieces(spec) for state in piece.tape.states}
    return tuple(by_name.values())


def state_bytes_by_part(
    spec: ModelSpec, *, batch_size: Dim, bytes_per_value: Dim
) -> dict[str, Dim]:
    """Count by kind the bytes that mixers with a state keep between tokens, however many.

    Returns: bytes of every state of the mixer by its name; nothing where no block has one.
    """
    copies = batch_size * pieces.recurrent_layers(spec)
    return {
        state.name: copies
        * state.size
        * (bytes_per_value if state.bytes_per_value is None else state.bytes_per_value)
        for state in states(spec)
    }


def forward_run(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None = None,
    pairs: tuple[Dim, Dim] | None = None,
) -> dict[str, Dim]:
    """Count what words (`tape.TOKENS`, ...) stand for in a forward.

    `pairs`: of one sequence, where everything is seen and where a window is; None: seq_len² each.

    Returns: what `Weight.flops` and `Product.flops` take.
    """
    run = counts_of(spec, Pass(batch_size=batch_size, seq_len=seq_len, source_len=source_len))
    if pairs is not None:
        full, windowed = pairs
        run |= {PAIRS: batch_size * full, WINDOWED_PAIRS: batch_size * windowed}
        part = spec.last_stack.attention
        if isinstance(part, CompressedAttention):
            run |= {
                ENTRIES[letter]: batch_size * entry_pairs(seq_len, part.ratio_of(letter))
                for letter in set(part.pattern) & ENTRIES.keys()
            }
    return run


def decode_run(
    spec: ModelSpec, *, batch_size: Dim, kv_len: Dim, source_len: Dim | None = None
) -> dict[str, Dim]:
    """Count what words (`tape.TOKENS`, ...) stand for in a step of decoding.

    Returns: what `Weight.flops` and `Product.flops` take.
    """
    run = Pass(batch_size=batch_size, seq_len=kv_len, source_len=source_len, decode=True)
    return counts_of(spec, run)


def kept_pairs(spec: ModelSpec, seq_len: Dim, prefix_len: Dim) -> tuple[Dim, Dim]:
    """Count one sequence's pairs that the mask keeps: where everything is seen, and in a window."""
    near = spec.last_stack.attention.window
    everything, windowed = (
        self_attention_pairs(
            spec.kind,
            seq_len,
            window=window and window.size,
            chunked=window is not None and window.kind == "chunked",
            prefix_len=prefix_len,
        )
        for window in (None, near)
    )
    return everything, windowed


def params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the distinct stored parameters by role, tied ones once.

    Returns: every role in order; their sum is `params`.
    """
    return by_role(weights(spec), lambda weight: weight.params, ROLES)


def active_params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters used for one token by role: top_k of the experts, everything else whole.

    The most, where there are zero experts: `least_active_params` has the least.

    Returns: every role in order; their sum is `active_params`.
    """
    return by_role(weights(spec), lambda weight: weight.active, ROLES)


def active_params_no_embed(spec: ModelSpec) -> Dim:
    """Count the parameters used for one token, without a token table that is only looked up.

    A tied table stays: the head multiplies with it. Token-type and position tables stay. The table
    of each layer's own embeddings, which tokens look up, goes like a token table.
    """
    tied = spec.head is not None and spec.head.tied
    tables = (f"{TABLE}.weight",) if tied else (f"{TABLE}.weight", "embed_tokens.weight")
    return active_params(spec) - sum(
        weight.params for weight in weights(spec) if weight.name in tables
    )


def looked_up_params(spec: ModelSpec) -> Dim:
    """Count the parameters of the tables that are looked up: tokens, token types, each layer's."""
    tables = ("embed_tokens.weight", "embed_types.weight", f"{TABLE}.weight")
    return sum(weight.params for weight in weights(spec) if weight.name in tables)


def least_active_params(spec: ModelSpec) -> Dim:
    """Count the parameters used for one token that chooses as many zero experts as it can.

    `active_params` less min(k, E_z) of its k experts in each MoE layer; the same where E_z is 0

    Source: LongCat-Flash, arXiv:2509.01322, sec. 2.1.

    >>> from metacount.catalog import entry
    >>> longcat = entry("longcat-flash").spec()
    >>> active_params(longcat), least_active_params(longcat)
    (32182654976, 19499079680)
    """
    mixture = spec.last_stack.mixture
    if mixture is None or mixture.zero is None:
        return active_params(spec)
    k, given_back = mixture.top_k, smaller(mixture.top_k, mixture.zero.n_experts)
    chosen = sum(weight.active for weight in weights(spec) if weight.used is not None)
    return active_params(spec) - exact_div(chosen, k) * given_back


def buffers(spec: ModelSpec) -> dict[str, Dim]:
    """Count stored values that are not parameters, by name.

    One selection bias per score of each MoE layer; one number that each layer's output is times; a
    table of the experts of each token in layers that choose by it, in the place of the bias.

    Source: DeepSeek-V3, arXiv:2412.19437, eq. 16, their b_i; Gemma 4's released code.
    """
    values = 0
    mixture = spec.last_stack.mixture
    if mixture is not None and mixture.selection_bias and not mixture.bias_is_param:
        values = sum(
            (pieces.moe_layers(spec, stack.n_layers) - mixture.n_hash_layers) * mixture.n_scores
            for stack in spec.stacks
        )
    others = {"layer_scalar": spec.last_stack.n_layers} if spec.last_stack.layer_scalar else {}
    if mixture is not None and spec.embedding is not None and not is_zero(mixture.n_hash_layers):
        others["token_experts"] = mixture.n_hash_layers * spec.embedding.vocab_size * mixture.top_k
    return {"selection_bias": values, **others}


def matmul_flops_by_role(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, source_len: Dim | None = None
) -> dict[str, Dim]:
    """Count the FLOPs of a forward by role, attention counted in full, logits for all positions.

    MLA in its expanded form. An encoder-decoder reads source_len tokens (None: seq_len) and writes
    seq_len. What is counted and what is not: `flops_by_role`.
    """
    run = forward_run(spec, batch_size=batch_size, seq_len=seq_len, source_len=source_len)
    return flops_by_role(spec, run)


def causal_matmul_flops_by_role(
    spec: ModelSpec,
    *,
    batch_size: Dim,
    seq_len: Dim,
    source_len: Dim | None = None,
    prefix_len: Dim = 0,
) -> dict[str, Dim]:
    """Count the FLOPs of a forward by role, attention products only over pairs that the mask keeps.

    A prefix-decoder sees its first prefix_len tokens in both directions. The pairs are those of
    `masks.self_attention_pairs`.
    """
    _check_prefix(spec, prefix_len, seq_len)
    pairs = kept_pairs(spec, seq_len, prefix_len)
    run = forward_run(
        spec, batch_size=batch_size, seq_len=seq_len, source_len=source_len, pairs=pairs
    )
    return flops_by_role(spec, run)


def decode_matmul_flops_by_role(
    spec: ModelSpec, *, batch_size: Dim, kv_len: Dim, source_len: Dim | None = None
) -> dict[str, Dim]:
    """Count by role the FLOPs of one more token per sequence at kv_len positions, itself included.

    MLA in its absorbed form. A windowed layer attends min(kv_len, window) positions; a
    cross-attention source_len (None: kv_len) cached ones, and the encoder does not run again.
    Transformer-XL projects the sinusoids of its positions again.
    """
    if spec.kind == "encoder":
        raise SpecError("kind", "has no decode step", spec.kind, "choose a decoder")
    run = decode_run(spec, batch_size=batch_size, kv_len=kv_len, source_len=source_len)
    return flops_by_role(spec, run, decode=True)


def _check_prefix(spec: ModelSpec, prefix_len: Dim, seq_len: Dim) -> None:
    if spec.kind != "prefix-decoder" and not is_zero(prefix_len):
        raise SpecError("prefix_len", "belongs to a prefix-decoder", prefix_len, "leave it out")
    if isinstance(prefix_len, int) and isinstance(seq_len, int) and prefix_len > seq_len:
        rule = "must be at most seq_len"
        raise SpecError("prefix_len", rule, prefix_len, f"choose 0 to {seq_len}")


def flops_by_role(
    spec: ModelSpec, run: Mapping[str, Dim], *, decode: bool = False
) -> dict[str, Dim]:
    """Count FLOPs by role in a `forward_run` or a `decode_run`: 2 per multiply-add.

    Returns: every role in order, exact.
    Not counted: softmax, norms, activations, rotary embedding, routing, biases, embedding look-up.
    """
    terms: tuple[Weight | Product, ...] = (*weights(spec), *products(spec, decode=decode))
    return by_role(terms, lambda term: term.flops(run), ROLES)


def _summed(by_part: Callable[..., dict[str, Dim]]) -> Callable[..., Dim]:
    """Give the sum over the parts of a count, with the same arguments."""

    def total(spec: ModelSpec, **sizes: Dim) -> Dim:
        return sum(by_part(spec, **sizes).values())

    total.__doc__ = f"Count what `{by_part.__name__}` does, in all."
    return total


params = _summed(params_by_role)
active_params = _summed(active_params_by_role)
matmul_flops = _summed(matmul_flops_by_role)
causal_matmul_flops = _summed(causal_matmul_flops_by_role)
decode_matmul_flops = _summed(decode_matmul_flops_by_role)
kv_cache_bytes = _summed(kv_cache_bytes_by_part)
state_bytes = _summed(state_bytes_by_part)
