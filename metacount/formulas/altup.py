"""What Gemma 3n puts around and beside its blocks: AltUp, LAuReL, embeddings of each layer.

>>> from metacount.formulas.terms import params_of
>>> one = (*altup_weights(2048, 4, scaled=True), *laurel_weights(2048, 64))  # Gemma 3n E2B
>>> params_of((*one, *layer_input_weights(2048, 256)))
1327184
>>> params_of(layer_table_weights(2048, 30, width=256, n_rows=262144))  # its 30 layers' own
2028994816
"""

from __future__ import annotations

from metacount.formulas.dim import Dim
from metacount.formulas.norm import norm_weights
from metacount.formulas.terms import TOKENS, Product, Weight, matrix
from metacount.spec.field import altered

BLOCK, OUTSIDE = "altup", "copies"
TABLE = "per_layer_inputs.embed_tokens.weight"


def altup_weights(
    d_model: Dim, n_inputs: Dim, *, scaled: bool, norm_bias: bool = False, norm_affine: bool = True
) -> tuple[Weight, ...]:
    """List the tensors of AltUp in one block, for n_inputs (a) copies of the stream.

    router [a, d] and its norm [d], coefficients to predict [a², a] and to correct [a, a]
    (+ [d], times which what a layer's own embedding meets is taken)

    A token meets the router twice, before and after the block.

    Returns: tensors.
    Source: Baykal et al. 2023, arXiv:2301.13310, alg. 1, their K is our a, their coefficients are
    constants; Gemma 3n's released code (the router that makes them, the scale).

    >>> [weight.shape for weight in altup_weights(2048, 4, scaled=True)]
    [(2048,), (4, 4), (16, 4), (4, 2048), (2048,)]
    """
    a, found = n_inputs, []
    if scaled:
        found.append(Weight(role="other", name=f"{BLOCK}.correct_output_scale", shape=(d_model,)))
    found += matrix(f"{BLOCK}.correction_coefs", "other", (a, a), TOKENS)
    found += matrix(f"{BLOCK}.prediction_coefs", "other", (a * a, a), TOKENS)
    (router,) = matrix(f"{BLOCK}.modality_router", "other", (a, d_model), TOKENS)
    found.append(altered(router, uses=2))
    found += norm_weights(f"{BLOCK}.router_norm", d_model, bias=norm_bias, affine=norm_affine)
    return tuple(found)


def altup_products(d_model: Dim, n_inputs: Dim) -> tuple[Product, ...]:
    """List the product of AltUp in one block: every copy predicted from all of them.

    [d, a] @ [a, a] for each token: d·a² multiply-adds

    Returns: products; the correction multiplies element by element and is not among them.
    Source: as `altup_weights`, eq. of the prediction.

    >>> altup_products(2048, 4)[0].width
    32768
    """
    width = d_model * n_inputs * n_inputs
    return (Product(role="other", name="predictions of copies", width=width, per=TOKENS),)


def copy_weights(d_model: Dim, n_inputs: Dim) -> tuple[Weight, ...]:
    """List the tensors that make copies of the stream, and one stream of the copies.

    before the first block and after the last, for each copy but the first: [d, d]

    Returns: tensors.
    Source: Gemma 3n's released code; arXiv:2301.13310, sec. 3, repeats the stream instead.

    >>> [(weight.name, weight.times) for weight in copy_weights(2048, 4)]
    [('copies.projections.weight', 3), ('copies.unembed_projections.weight', 3)]
    """
    return tuple(
        weight.repeated(n_inputs - 1)
        for name in ("projections", "unembed_projections")
        for weight in matrix(f"{OUTSIDE}.{name}", "other", (d_model, d_model), TOKENS)
    )


def laurel_weights(
    d_model: Dim, rank: Dim, *, norm_bias: bool = False, norm_affine: bool = True
) -> tuple[Weight, ...]:
    """List the tensors of the residual of low rank beside one attention (LAuReL).

    left [r_l, d], right [d, r_l], norm [d]

    Returns: tensors.
    Source: Menghani et al. 2024, arXiv:2411.07501, sec. 2 (LAuReL-LR), their r is our r_l;
    Gemma 3n's released code (the norm).

    >>> [weight.shape for weight in laurel_weights(2048, 64)]
    [(64, 2048), (2048, 64), (2048,)]
    """
    return (
        *matrix("laurel.linear_left", "other", (rank, d_model), TOKENS),
        *matrix("laurel.linear_right", "other", (d_model, rank), TOKENS),
        *norm_weights("laurel.post_laurel_norm", d_model, bias=norm_bias, affine=norm_affine),
    )


def layer_input_weights(
    d_model: Dim, width: Dim, *, norm_bias: bool = False, norm_affine: bool = True
) -> tuple[Weight, ...]:
    """List the tensors that bring a layer's own embedding in behind one block.

    gate [d_p, d], projection [d, d_p], norm [d]

    Returns: tensors.
    Source: Gemma 3n's released code (per-layer inputs).

    >>> [weight.shape for weight in layer_input_weights(2048, 256)]
    [(256, 2048), (2048, 256), (2048,)]
    """
    return (
        *matrix("per_layer_input.gate", "other", (width, d_model), TOKENS),
        *matrix("per_layer_input.projection", "other", (d_model, width), TOKENS),
        *norm_weights("per_layer_input.norm", d_model, bias=norm_bias, affine=norm_affine),
    )


def layer_table_weights(
    d_model: Dim,
    n_layers: Dim,
    *,
    width: Dim,
    n_rows: Dim,
    norm_bias: bool = False,
    norm_affine: bool = True,
) -> tuple[Weight, ...]:
    """List the tensors that give each layer an embedding of its own.

    table [V_p, N·d_p], which is looked up, projection [N·d_p, d], norm [d_p] for all layers

    Returns: tensors.
    Source: as `layer_input_weights`.

    >>> [weight.shape for weight in layer_table_weights(2048, 30, width=256, n_rows=262144)]
    [(262144, 7680), (7680, 2048), (256,)]
    """
    wide = n_layers * width
    inside = TABLE.partition(".")[0]
    return (
        Weight(role="embedding", name=TABLE, shape=(n_rows, wide)),
        *matrix(f"{inside}.model_projection", "other", (wide, d_model), TOKENS),
        *norm_weights(f"{inside}.projection_norm", width, bias=norm_bias, affine=norm_affine),
    )
