"""Feed-forward of a block: its width where it is dense, and how it is made wherever it stands."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import REQUIRED
from metacount.spec.field import choice, flag, number, part, pattern, short, size


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
    second: int | None = size(
        "d_ff_second",
        "m_2",
        "FFN hidden width of the blocks that are narrower or wider than the others",
        "values",
        default=None,
    )
    second_pattern: str = pattern(
        "d_ff_pattern",
        "M d_ff, W d_ff_second, repeated over the layers: MMW",
        "M d_ff, W d_ff_second",
        "MMW",
        default="M",
    )
    sparsity: float | None = number(
        "activation_sparsity",
        "share of the gate's values that are set to zero, as if they were normally distributed",
        default=None,
    )
    sparsity_pattern: str = pattern(
        "sparsity_pattern",
        "T top values of the gate alone, F all of them, repeated over the layers: TTF",
        "T top values alone, F all values",
        "TTF",
        default="T",
    )

    def is_second(self, index: int) -> bool:
        """Tell whether the feed-forward of block `index` has the second width."""
        return self.second_pattern[index % len(self.second_pattern)] == "W"

    def width_of(self, index: int) -> int | None:
        """Return the hidden width of the feed-forward of block `index`."""
        return self.second if self.is_second(index) else self.d_ff

    def sparsity_of(self, index: int) -> float | None:
        """Return the share of gate values that block `index` sets to zero; None: it keeps all."""
        sparse = self.sparsity_pattern[index % len(self.sparsity_pattern)] == "T"
        return self.sparsity if sparse else None

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
        self._check_patterns()

    def _check_patterns(self) -> None:
        if self.second is not None and "W" not in self.second_pattern:
            raise SpecError(
                "d_ff_pattern",
                "has no layer for d_ff_second",
                self.second_pattern,
                "put W in, or leave d_ff_second out",
            )
        if self.second is None and "W" in self.second_pattern:
            raise SpecError(
                "d_ff_second",
                f"is needed by d_ff_pattern {short(self.second_pattern)}",
                None,
                "set d_ff_second",
            )
        if self.sparsity is None and self.sparsity_pattern != "T":
            raise SpecError(
                "sparsity_pattern",
                "has no meaning without activation_sparsity",
                short(self.sparsity_pattern),
                "leave sparsity_pattern out",
            )
        if self.sparsity is None:
            return
        if self.sparsity >= 1:
            raise SpecError(
                "activation_sparsity",
                "must be below 1",
                self.sparsity,
                "choose one between 0 and 1",
            )
        if not self.gated:
            raise SpecError(
                "activation_sparsity",
                "belongs to a gated feed-forward",
                self.sparsity,
                "set gated, or leave activation_sparsity out",
            )
        if "T" not in self.sparsity_pattern:
            raise SpecError(
                "sparsity_pattern",
                "has no layer for activation_sparsity",
                short(self.sparsity_pattern),
                "put T in, or leave activation_sparsity out",
            )
