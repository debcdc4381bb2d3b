"""Feed-forward of a block: its width where it is dense, and how it is made wherever it stands."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import REQUIRED
from metacount.spec.field import choice, flag, number, part, size


@part
class FeedForward:
    """Two matrices, or three with a gate. `d_ff` None: every layer's is a mixture of experts.

    Experts are made alike (activation, gate), shared experts with the same biases too.
    """

    needed = "by a feed-forward"

    d_ff: int | None = size(
        "d_ff",
        "m",
        "FFN hidden width, final (after the 2/3 rule and rounding)",
        "values",
        "intermediate_size n_inner inter_dim ffn_dim ffn_hidden_size hidden_dim intermediate_dim"
        " mlp_hidden_size feed_forward_length decoder_ffn_dim encoder_ffn_dim d_inner"
        " intermediate_size_mlp mlp_dim",
        default=None,
    )
    activation: str = choice(
        "activation",
        "of the feed-forward",
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "relu2",
        "sigmoid",
        "identity",
        "clamped_swiglu",
    )
    gated: bool = flag(
        "gated", "a third matrix gates the feed-forward (SwiGLU and its kin)", default=REQUIRED
    )
    bias: bool = flag("ffn_bias", "a bias on each matrix of the feed-forward", default=False)
    swish_beta: float = number("swish_beta", "beta of silu", default=1.0)
    gate_scale: float = number(
        "gate_scale", "factor on the gate, before its activation", default=1.0
    )
    scale: float = number("ffn_scale", "factor on the output of the feed-forward", default=1.0)

    def check(self) -> None:
        """Raise `SpecError` for an activation that does not go with the rest."""
        if self.activation == "clamped_swiglu" and not self.gated:
            raise SpecError(
                "activation", "clamped_swiglu is a gated form", "clamped_swiglu", "set gated"
            )
        if self.activation == "identity" and not self.gated:
            raise SpecError(
                "activation",
                "identity without a gate is one linear map",
                "identity",
                "set gated (bilinear)",
            )
        if self.gate_scale != 1.0 and not self.gated:
            raise SpecError(
                "gate_scale",
                "belongs to a gated feed-forward",
                self.gate_scale,
                "set gated, or leave gate_scale out",
            )
        if self.swish_beta != 1.0 and self.activation != "silu":
            raise SpecError(
                "swish_beta", "belongs to activation silu", self.swish_beta, "leave swish_beta out"
            )
