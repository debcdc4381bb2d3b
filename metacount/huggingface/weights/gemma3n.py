"""Names of the tensors of Gemma 3n: AltUp, LAuReL and each layer's own embedding."""

from __future__ import annotations

from metacount.huggingface.weights.blocks import LLAMA_BLOCK, LLAMA_ENDS, same
from metacount.huggingface.weights.names import Dialect, Table
from metacount.spec.stack import MAX_INPUTS

ALTUP = "altup.correction_coefs altup.prediction_coefs altup.modality_router altup.router_norm"
BLOCK: Table = {
    **LLAMA_BLOCK,
    **same(f"altup.correct_output_scale {ALTUP}"),
    **same("laurel.linear_left laurel.linear_right laurel.post_laurel_norm"),
    "per_layer_input_gate": "per_layer_input.gate",
    "per_layer_projection": "per_layer_input.projection",
    "post_per_layer_input_norm": "per_layer_input.norm",
}

ENDS: Table = {
    **LLAMA_ENDS,
    # a matrix for each copy of the stream but the first
    **{
        f"altup_{name}.{number}": f"decoder.copies.{name}.{number}"
        for name in ("projections", "unembed_projections")
        for number in range(MAX_INPUTS)
    },
    "embed_tokens_per_layer": "decoder.per_layer_inputs.embed_tokens",
    "per_layer_model_projection": "decoder.per_layer_inputs.model_projection",
    "per_layer_projection_norm": "decoder.per_layer_inputs.projection_norm",
}

GEMMA3N = {
    "gemma3n": Dialect(
        mark="layers.0.altup.modality_router.weight",
        prefix="model.",
        ends=ENDS,
        stacks={"layers.": ("decoder.layers", BLOCK)},
    )
}
