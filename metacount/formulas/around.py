"""What stands around the branches of blocks, and around all blocks, fed from a `ModelSpec`.

>>> from metacount.catalog import entry
>>> around_weights(entry("llama-7b").spec()), end_weights(entry("llama-7b").spec())
((), ())
"""

from __future__ import annotations

from metacount.formulas import altup
from metacount.formulas.dim import Dim
from metacount.formulas.terms import Product, Weight, params_of
from metacount.spec import ModelSpec


def around_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors of one block around and beside its branches; none in most models.

    Source: `altup.altup_weights`, `altup.laurel_weights`, `altup.layer_input_weights`.
    """
    stack, d_model = spec.last_stack, spec.d_model
    norms = {"norm_bias": stack.norms.bias, "norm_affine": stack.norms.affine}
    found: list[Weight] = []
    if stack.altup is not None:
        scaled = stack.layer_inputs is not None
        found += altup.altup_weights(d_model, stack.altup.n_inputs, scaled=scaled, **norms)
    if stack.laurel is not None:
        found += altup.laurel_weights(d_model, stack.laurel.rank, **norms)
    if stack.layer_inputs is not None:
        found += altup.layer_input_weights(d_model, stack.layer_inputs.width, **norms)
    return tuple(found)


def around_products(spec: ModelSpec) -> tuple[Product, ...]:
    """List the products of one block around its branches; none in most models.

    Source: `altup.altup_products`.
    """
    part = spec.last_stack.altup
    return () if part is None else altup.altup_products(spec.d_model, part.n_inputs)


def end_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors before and after the blocks; none in most models.

    Source: `altup.copy_weights`, `altup.layer_table_weights`.
    """
    stack = spec.last_stack
    found: list[Weight] = []
    if stack.altup is not None:
        found += altup.copy_weights(spec.d_model, stack.altup.n_inputs)
    inputs = stack.layer_inputs
    if inputs is not None:
        found += altup.layer_table_weights(
            spec.d_model,
            stack.n_layers,
            width=inputs.width,
            n_rows=inputs.vocab_size,
            norm_bias=stack.norms.bias,
            norm_affine=stack.norms.affine,
        )
    return tuple(found)


def layer_table_params(spec: ModelSpec) -> Dim:
    """Count the parameters of the table of each layer's own embeddings; 0 where layers have none.

    Source: `altup.layer_table_weights`.
    """
    return params_of(one for one in end_weights(spec) if one.name == altup.TABLE)
