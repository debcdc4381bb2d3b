"""The two ends of a model: the tables before the blocks, the head and the loss after them.

And what Gemma 3n puts around and beside its blocks: AltUp, LAuReL, embeddings of each layer.
"""

from __future__ import annotations

from metacount.formulas.dim import Dim, chunk, is_zero
from metacount.formulas.tape import (
    COLUMNS,
    INDEX,
    SEQUENCES,
    TOKENS,
    Product,
    Store,
    Tape,
    Tensor,
    several,
)
from metacount.spec import ModelSpec
from metacount.spec.attention import NoAttention
from metacount.spec.position import Learned, RelativeBuckets
from metacount.spec.stack import AltUp, Laurel, LayerInputs, Norms, Stack

HEAD = "lm_head"
TABLE = "per_layer_inputs.embed_tokens"  # of each layer's own embeddings
# Tensors that belong to the model, not to each stack of it.
OF_MODEL = (
    "embed_tokens.",
    "embed_types.",
    "embed_proj.",
    "embed_queries.",
    "lm_head.",
    "head_transform.",
    "pooler.",
)


def table_width(spec: ModelSpec) -> Dim:
    """Return the width of token, token-type, learned position tables: d unless d_embedding differs.

    Source: Clark et al. 2020, arXiv:2003.10555, table 6 (embedding size).
    """
    tables = spec.embedding
    return spec.d_model if tables is None or tables.width is None else tables.width


def embed(
    t: Tape, spec: ModelSpec, stack: Stack, word: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run what stands before the blocks of a stack.

    tokens [V, e], token types [types, e], learned positions [n_positions, e], perhaps a norm, and
    [d, e] with a bias to project e to d; T5's bias [n_buckets, h] and the query table [P_q, d] of
    the last block; copies of the stream and each layer's own embeddings (Gemma 3n).

    Returns: the stream; the bias of scores; the last block's queries: None where there are none.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.4 (tokens); Radford et al. 2018, sec. 3.1
    (positions); Devlin et al. 2018, arXiv:1810.04805 (types); Raffel et al. 2019, arXiv:1910.10683,
    sec. 2.1 (bias); Clark et al. 2020, arXiv:2003.10555 (projection); Zeng et al. 2021,
    arXiv:2104.12369 (query table).
    """
    tables, positions, norms, run = spec.embedding, spec.positions, stack.norms, t.run
    n, width = run.counts[word], table_width(spec)
    x = t.tensor(width, word, grad=False)
    if tables is not None:
        ids = t.constant(n, width=INDEX)
        name, size = "embed_tokens", tables.vocab_size
        x = t.look_up(name, size, width, ids, role="embedding", word=word, cut=COLUMNS)
        x = t.sum_over_ranks(x)
        if not is_zero(tables.n_token_types):
            types = t.constant(n, width=INDEX)
            made = t.look_up(
                "embed_types", tables.n_token_types, width, types, role="embedding", word=word
            )
            x = t.add(x, made)
    bias = queries = None
    if isinstance(positions, Learned):
        index = t.constant(run.n_queries, width=INDEX)
        made = t.look_up(
            "embed_positions", positions.n_positions, width, index, role="position", word=word
        )
        x = t.add(x, made)
        if not is_zero(positions.n_query_positions):
            queries = _queries(t, positions, spec.d_model, word)
    if isinstance(positions, RelativeBuckets):
        mixer = spec.last_stack.attention
        assert not isinstance(mixer, NoAttention)  # the spec requires it
        index = t.constant(run.n_queries * run.n_queries, width=INDEX)
        name = "relative_bias.relative_attention_bias"
        bias = t.look_up(
            name, positions.n_buckets, mixer.n_heads, index, role="position", word=word
        )
    if tables is not None and tables.norm:
        x = t.norm(x, "embed_norm", norms)
    if tables is not None and tables.width is not None:
        t.role = "embedding"
        x = t.linear(x, "embed_proj", spec.d_model, bias=True)
    if stack.layer_inputs is not None:
        layer_tables(t, stack.layer_inputs, spec.d_model, stack.n_layers, norms)
    if stack.altup is not None:
        copies(t, stack.altup, spec.d_model)
    return x, bias, queries


def _queries(t: Tape, positions: Learned, d_model: Dim, word: str) -> Tensor:
    """Read one row a position for all sequences, copied for each where both are several."""
    run = t.run
    index = t.constant(run.n_queries, width=INDEX)
    made = t.look_up(
        "embed_queries", positions.n_query_positions, d_model, index, role="position", word=word
    )
    copies = 1 + several(run.n_queries) * (run.batch_size - 1)
    spread = Tensor(Store(copies * run.n_queries, d_model, run.value), d_model, word, made.grad)
    spread.rows = run.counts[word]
    return spread


def final_norm(t: Tape, stack: Stack, x: Tensor) -> Tensor:
    """Run the norm after the last block of a stack, where there is one."""
    return t.norm(x, "norm", stack.norms) if stack.norms.final else x


def unembed(t: Tape, spec: ModelSpec, x: Tensor) -> Tensor | None:
    """Run what stands behind the last norm: a transform, the head [V, e], a pooler [d, d].

    A tied head multiplies with the token table, which is stored once. The pooler reads the first
    token of each sequence, and no loss sees it.

    Returns: the logits; None for a model without a head.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sec. 3.4; Devlin et al. 2018, arXiv:1810.04805,
    and its code (`get_masked_lm_output`: transform; `pooled_output`).
    """
    tables, head, norms = spec.embedding, spec.head, spec.last_stack.norms
    logits = None
    if head is not None and tables is not None:
        t.role, width = "head", table_width(spec)
        if head.transform is not None:
            part = spec.last_stack.feed_forward
            assert part is not None  # the spec requires it
            x = t.linear(x, "head_transform.dense", width, bias=head.transform.bias)
            x = t.activation(x, part.activation, part.swish_beta)
            x = t.norm(x, "head_transform.norm", norms)
        logits = _head(t, x, tables.vocab_size, tied=head.tied)
        if head.bias:
            logits.grad = t.weight(f"{HEAD}.bias", tables.vocab_size, cut=COLUMNS) or logits.grad
        t.role = "other"  # of no module but the model
        logits = t.scale(logits, head.scale)
        if head.softcap is not None:
            logits = t.from_result(logits, "tanh")
    if spec.pooler:
        u = t.without_gradients()
        u.role, d = "other", spec.d_model
        first = Tensor(Store(t.run.batch_size, d, t.run.value), d, SEQUENCES, False)
        u.linear(first, "pooler.dense", d, bias=True)
    return logits


def _head(t: Tape, x: Tensor, vocab_size: Dim, *, tied: bool) -> Tensor:
    tp = t.run.rank.tp
    x = t.sum_gradients(x)
    padded = x.rows * tp * -(-vocab_size // tp)
    if t.run.rank.cut_logits:
        vocab_size = chunk(vocab_size, tp, t.run.rank.tp_index)
    if not tied:
        y = t.linear(x, HEAD, vocab_size, cut=COLUMNS)
        return y if t.run.rank.cut_logits else t.gather_parts(y, padded, backward=False)
    trained = t.is_trained("embed_tokens.weight")
    width = vocab_size * x.columns
    t.products.append(Product(role="head", name="tied head", width=width, per=x.word))
    y = t.by_weight(x, "tied head", vocab_size, trained)
    return y if t.run.rank.cut_logits else t.gather_parts(y, padded, backward=False)


def loss(t: Tape, logits: Tensor) -> None:
    """Run the cross-entropy of all positions, in float32 at least.

    It saves the log-softmax of all logits, the targets, and how many there are; logits themselves
    and their float32 copy are needed by nothing after it.

    Source: torch's derivative of the cross-entropy.
    """
    t.role = "other"
    wide = t.widen(logits)
    wide = t.from_result(t.like(wide, grad=True), "log_softmax")
    if t.run.rank.cut_logits:
        t.sum_loss(wide)
    targets, n = t.constant(wide.rows, width=INDEX), t.constant(1)
    t.record("nll_loss", t.make(1, 1, grad=True), [(wide, True), (targets, True), (n, True)])


# --- what Gemma 3n puts around and beside its blocks ------------------------------------------


def altup(t: Tape, part: AltUp, d_model: Dim, norms: Norms, *, scaled: bool) -> None:
    """AltUp of one block, for n_inputs (a) copies of the stream: predicted, and corrected.

    router [a, d] and its norm [d], coefficients to predict [a², a] and to correct [a, a]
    (+ [d], times which what a layer's own embedding meets is taken). A token meets the router
    twice, before and after the block. The prediction is a product, [d, a] @ [a, a] for each token;
    the correction multiplies element by element.

    Source: Baykal et al. 2023, arXiv:2301.13310, alg. 1, their K is our a, their coefficients are
    constants; Gemma 3n's released code (the router that makes them, the scale).
    """
    t.role, a = "other", part.n_inputs
    x = t.tensor(d_model, TOKENS, grad=True)
    if scaled:
        t.weight("altup.correct_output_scale", d_model)
    routed = t.tensor(a, TOKENS, grad=True)
    t.linear(routed, "altup.correction_coefs", a)
    coefs = t.linear(routed, "altup.prediction_coefs", a * a)
    t.linear(x, "altup.modality_router", a, uses=2)
    t.norm(x, "altup.router_norm", norms)
    copies = t.tensor(a * d_model, TOKENS, grad=True)
    t.matmul(
        "predictions of copies", copies, coefs, t.like(copies), per=TOKENS, width=d_model * a * a
    )


def copies(t: Tape, part: AltUp, d_model: Dim) -> None:
    """Make copies of the stream, and one stream of the copies.

    before the first block and after the last, for each copy but the first: [d, d]

    Source: Gemma 3n's released code; arXiv:2301.13310, sec. 3, repeats the stream instead.
    """
    t.role = "other"
    x = t.tensor(d_model, TOKENS, grad=True)
    for name in ("projections", "unembed_projections"):
        t.linear(x, f"copies.{name}", d_model, times=part.n_inputs - 1)


def laurel(t: Tape, part: Laurel, x: Tensor, normed: Tensor, norms: Norms) -> Tensor:
    """LAuReL: a residual of low rank beside one attention: x + norm(right(left(normed))).

    left [r_l, d], right [d, r_l], norm [d]

    Source: Menghani et al. 2024, arXiv:2411.07501, sec. 2 (LAuReL-LR), their r is our r_l;
    Gemma 3n's released code (the norm).
    """
    t.role = "other"
    low = t.linear(normed, "laurel.linear_left", part.rank)
    y = t.linear(low, "laurel.linear_right", x.columns)
    return t.add(x, t.add(normed, t.norm(y, "laurel.post_laurel_norm", norms)))


def layer_input(t: Tape, part: LayerInputs, d_model: Dim, norms: Norms) -> None:
    """Bring a layer's own embedding in behind one block: norm(projection(act(gate(x)) · own)).

    gate [d_p, d], projection [d, d_p], norm [d]

    Source: Gemma 3n's released code (per-layer inputs).
    """
    t.role = "other"
    gate = t.linear(t.tensor(d_model, TOKENS, grad=True), "per_layer_input.gate", part.width)
    y = t.linear(gate, "per_layer_input.projection", d_model)
    t.norm(y, "per_layer_input.norm", norms)


def layer_tables(t: Tape, part: LayerInputs, d_model: Dim, n_layers: Dim, norms: Norms) -> None:
    """Give each layer an embedding of its own.

    table [V_p, N·d_p], which is looked up, projection [N·d_p, d], norm [d_p] for all layers

    Source: as `layer_input`.
    """
    wide, n = n_layers * part.width, t.run.counts[TOKENS]
    t.look_up(
        TABLE, part.vocab_size, wide, t.constant(n, width=INDEX), role="embedding", word=TOKENS
    )
    t.role = "other"
    x = t.tensor(d_model, TOKENS, grad=True)
    y = t.linear(x, "per_layer_inputs.model_projection", wide)
    t.norm(y, "per_layer_inputs.projection_norm", norms, rows=n * n_layers, width=part.width)
