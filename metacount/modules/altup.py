"""Runs what Gemma 3n puts around and beside its blocks: AltUp, LAuReL, embeddings of each layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from metacount.modules.ffn import activate
from metacount.modules.linear import Linear, Table
from metacount.modules.norm import at_least_float32, make_norm
from metacount.spec import ModelSpec
from metacount.spec import stack as parts
from metacount.spec.stack import Norms

LEAST_SQUARE = 1e-5  # below it a copy's mean square is not divided by


class AltUp(nn.Module):
    """Predicts every copy of the residual stream from all, and corrects them by the one computed.

    Baykal et al. 2023, arXiv:2301.13310, algorithm 1: p_i = x_i + sum over j of c_ij·x_j, and
    x_i = p_i + g_i·(y - p_active). Here the coefficients c and g are no constants: a router makes
    them of the copy that is computed, once before and once after it.
    """

    def __init__(self, part: parts.AltUp, d_model: int, *, norms: Norms, scaled: bool) -> None:
        super().__init__()
        self.n_inputs, self.active, self.d_model = part.n_inputs, part.active, d_model
        # what the layer's own embedding meets is the corrected copy times this
        self.correct_output_scale = nn.Parameter(torch.ones(d_model)) if scaled else None
        self.correction_coefs = Linear(part.n_inputs, part.n_inputs, bias=False)
        self.prediction_coefs = Linear(part.n_inputs, part.n_inputs**2, bias=False)
        self.modality_router = Linear(d_model, part.n_inputs, bias=False)
        self.router_norm = make_norm(norms, d_model)

    def routed(self, x_BSD: Tensor) -> Tensor:
        """Say what a position is like, a value a copy: [B, S, D] -> [B, S, A]."""
        routed_BSA = self.modality_router(self.router_norm(x_BSD) * (1 / self.d_model))
        return torch.tanh(at_least_float32(routed_BSA)).to(x_BSD.dtype)

    def predict(self, x_ABSD: Tensor) -> Tensor:
        """Predict what a layer makes of each copy: [A, B, S, D] -> [A, B, S, D]."""
        coefs = self.prediction_coefs(self.routed(x_ABSD[self.active]))
        coefs_BSAA = coefs.unflatten(-1, (self.n_inputs, self.n_inputs)).transpose(-1, -2)
        # [b, s, d, a] @ [b, s, a, a] -> [b, s, d, a]
        y_BSDA = x_ABSD.permute(1, 2, 3, 0) @ coefs_BSAA
        return y_BSDA.permute(3, 0, 1, 2) + x_ABSD

    def correct(self, predicted_ABSD: Tensor, y_BSD: Tensor) -> Tensor:
        """Correct every copy by the layer's output y [B, S, D] for the active copy."""
        coefs_BSA = self.correction_coefs(self.routed(y_BSD)) + 1.0
        error_BSD = y_BSD - predicted_ABSD[self.active]
        return error_BSD * coefs_BSA.permute(2, 0, 1).unsqueeze(-1) + predicted_ABSD

    def scaled(self, x_ABSD: Tensor) -> Tensor:
        """Give the copy that the layer computed as its own embedding meets it, [B, S, D]."""
        x_BSD = x_ABSD[self.active]
        return x_BSD if self.correct_output_scale is None else x_BSD * self.correct_output_scale


class Copies(nn.Module):
    """Makes copies of the stream before the first block, and one stream of them after the last.

    Every copy but the first goes through a matrix, and then has the first one's mean square.
    """

    def __init__(self, part: parts.AltUp, d_model: int) -> None:
        super().__init__()
        self.projections, self.unembed_projections = (
            nn.ModuleList(Linear(d_model, d_model, bias=False) for _ in range(1, part.n_inputs))
            for _ in range(2)
        )

    def spread(self, x_BSD: Tensor) -> Tensor:
        """Make the copies of the stream: [B, S, D] -> [A, B, S, D]."""
        return torch.stack([x_BSD, *(as_large(each(x_BSD), x_BSD) for each in self.projections)])

    def gathered(self, x_ABSD: Tensor) -> Tensor:
        """Make the copies whose mean over copies is the stream: [A, B, S, D] -> [A, B, S, D]."""
        first = x_ABSD[0]
        pairs = zip(self.unembed_projections, x_ABSD[1:], strict=True)
        return torch.stack([first, *(as_large(each(x), first) for each, x in pairs)])


def as_large(x: Tensor, like: Tensor) -> Tensor:
    """Give x the mean square that `like` has."""
    square = x.square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE)
    return x * like.square().mean(-1, keepdim=True).sqrt() / square.sqrt()


class Laurel(nn.Module):
    """x + norm(right(left(x))), a residual of low rank.

    Menghani et al. 2024, arXiv:2411.07501, section 2, their LR form; the norm is Gemma 3n's.
    """

    def __init__(self, part: parts.Laurel, d_model: int, *, norms: Norms) -> None:
        super().__init__()
        self.linear_left = Linear(d_model, part.rank, bias=False)
        self.linear_right = Linear(part.rank, d_model, bias=False)
        self.post_laurel_norm = make_norm(norms, d_model)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Add norm(right(left(x))) to x: [B, S, D] -> [B, S, D]."""
        return x_BSD + self.post_laurel_norm(self.linear_right(self.linear_left(x_BSD)))

    def branch(self, x_BSD: Tensor, normed_BSD: Tensor) -> Tensor:
        """Add the residual to the stream behind attention; the sum has about the same variance."""
        return (x_BSD + self(normed_BSD)) / math.sqrt(2)


class LayerTable(Table):
    """Each layer's own embeddings of a token side by side, [V_p, N·P]."""


class LayerInputs(nn.Module):
    """Gives each layer an embedding of its own: of the token, and of what the first layer reads.

    (table[token]·sqrt(P) + norm(projection(x)/sqrt(D))) / sqrt(2), of width P for each layer.
    """

    def __init__(self, spec: ModelSpec, part: parts.LayerInputs, n_layers: int) -> None:
        super().__init__()
        self.n_layers, self.width, self.n_rows = n_layers, part.width, part.vocab_size
        self.embed_tokens = LayerTable(part.vocab_size, n_layers * part.width)
        self.model_projection = Linear(spec.d_model, n_layers * part.width, bias=False)
        self.projection_norm = make_norm(spec.last_stack.norms, part.width)

    def forward(self, tokens: Tensor, x_BSD: Tensor) -> Tensor:
        """Embed tokens [B, S], with their embedding [B, S, D], for each layer: [B, S, N, P]."""
        known = torch.where((tokens >= 0) & (tokens < self.n_rows), tokens, 0)
        told_BSE = self.embed_tokens(known) * self.width**0.5
        made_BSE = self.model_projection(x_BSD) * x_BSD.shape[-1] ** -0.5
        given, made = (t.unflatten(-1, (self.n_layers, self.width)) for t in (told_BSE, made_BSE))
        return (self.projection_norm(made) + given) * 2**-0.5


class LayerInput(nn.Module):
    """norm(projection(act(gate(x)) · the layer's own embedding)), which is added to the stream."""

    def __init__(self, spec: ModelSpec, part: parts.LayerInputs) -> None:
        super().__init__()
        like = spec.last_stack.feed_forward
        assert like is not None  # the spec requires it
        self.activation, self.swish_beta = like.activation, like.swish_beta
        self.gate = Linear(spec.d_model, part.width, bias=False)
        self.projection = Linear(part.width, spec.d_model, bias=False)
        self.norm = make_norm(spec.last_stack.norms, spec.d_model)

    def forward(self, x_BSD: Tensor, input_BSP: Tensor) -> Tensor:
        """Gate the layer's embedding [B, S, P] by x [B, S, D], project, norm: -> [B, S, D]."""
        gate_BSP = activate(self.gate(x_BSD), self.activation, self.swish_beta)
        read_BSP = gate_BSP * input_BSP
        return self.norm(self.projection(read_BSP))
