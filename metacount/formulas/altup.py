"""What Gemma 3n puts around and beside its blocks: AltUp, LAuReL, embeddings of each layer."""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.tape import INDEX, Tape, Tensor
from metacount.formulas.terms import TOKENS
from metacount.spec.stack import AltUp, Laurel, LayerInputs, Norms

TABLE = "per_layer_inputs.embed_tokens"


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
