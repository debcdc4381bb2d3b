"""Mixture of experts: router, experts in fused 3-D tensors, shared experts, balancing loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.modules.ffn import activate, feed_forward, gate
from metacount.modules.linear import Linear
from metacount.modules.norm import RMSNorm, at_least_float32
from metacount.spec import ffn as parts


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What the router decided for N tokens.

    `probs_NE`: a score for every expert (softmax over all of them, or sigmoid).
    `chosen_Nk`: the experts of each token. `weights_Nk`: what their outputs are multiplied by.
    """

    probs_NE: Tensor
    chosen_Nk: Tensor
    weights_Nk: Tensor


class Router(nn.Module):
    """Scores, choice and weights.

    softmax          softmax over all experts, then top-k, as they are (Switch, arXiv:2101.03961)
    softmax_renorm   the same, then divided by their sum (GShard, arXiv:2006.16668; Qwen3)
    topk_softmax     top-k of the logits, then softmax over those k (Mixtral, arXiv:2401.04088)
    sigmoid          sigmoid of each logit, top-k, as they are (Llama 4)
    sigmoid_renorm   the same, then divided by their sum (DeepSeek-V3, arXiv:2412.19437, eq. 13-16)
    sqrtsoftplus_renorm  √softplus of each logit, top-k, divided by their sum (DeepSeek-V4)

    `selection_bias` is added for the choice only (arXiv:2408.15664). With groups, only the experts
    of the `top_groups` best groups can be chosen; a group scores its best expert ("max",
    DeepSeek-V2) or the sum of its two best ("top2_sum", V3). `mixer_jitter` makes the choice that
    of SparseMixer: see `mixed`. Zero experts, which come last, have scores like the others.
    `n_hashed` tokens have their experts in a table, and no scores choose (DeepSeek-V4).

    A scaled router reads RMSNorm(x) · scale / √D, without weights of the norm, and multiplies each
    weight by a learned number of its expert (Gemma 4).
    """

    token_experts: Tensor | None

    def __init__(
        self,
        part: parts.Mixture,
        d_model: int,
        *,
        eps: float = 1e-5,
        n_hashed: int | None = None,
    ) -> None:
        super().__init__()
        self.mixer_jitter = part.mixer_jitter
        self.top_k, self.scoring, self.routed_scale = part.top_k, part.router, part.routed_scale
        self.groups = part.groups
        self.scale = self.per_expert_scale = None
        if part.scaled_router:
            self.norm = RMSNorm(d_model, affine=False, eps=eps)
            self.scale = nn.Parameter(torch.ones(d_model))
            self.per_expert_scale = nn.Parameter(torch.ones(part.n_scores))
        self.proj = Linear(d_model, part.n_scores, bias=part.router_bias)
        self.e_score_correction_bias: Tensor | None
        bias = torch.zeros(part.n_scores) if part.selection_bias and n_hashed is None else None
        if part.bias_is_param and bias is not None:
            self.e_score_correction_bias = nn.Parameter(bias)
        else:
            self.register_buffer("e_score_correction_bias", bias)
        table = None
        if n_hashed is not None:
            table = torch.arange(n_hashed * part.top_k).view(n_hashed, -1) % part.n_experts
        self.register_buffer("token_experts", table)

    def forward(self, x_ND: Tensor, tokens: Tensor | None = None) -> Routing:
        """Route tokens [N, D] to experts, each with a weight; scores in float32 or wider.

        A table is asked by the numbers of the `tokens`.
        """
        if self.scale is not None:
            x_ND = self.norm(x_ND) * self.scale * x_ND.shape[-1] ** -0.5
        logits_NE = at_least_float32(self.proj(x_ND))
        probs_NE = self._scored(logits_NE)
        if self.mixer_jitter is not None:
            chosen_Nk, weights_Nk = mixed(logits_NE, self.top_k, self.mixer_jitter)
            weights_Nk = weights_Nk * self.routed_scale
            return Routing(probs_NE=probs_NE, chosen_Nk=chosen_Nk, weights_Nk=weights_Nk)
        for_choice = probs_NE
        if self.e_score_correction_bias is not None:
            for_choice = for_choice + self.e_score_correction_bias
        if self.token_experts is not None:
            assert tokens is not None  # the block gives them
            chosen_Nk = self.token_experts[tokens.flatten()]
        else:
            chosen_Nk = self._limit_to_groups(for_choice).topk(self.top_k, dim=-1).indices
        if self.scoring == "topk_softmax":
            weights_Nk = logits_NE.gather(-1, chosen_Nk).softmax(-1)
        else:
            weights_Nk = probs_NE.gather(-1, chosen_Nk)
            if self.scoring.endswith("renorm"):
                weights_Nk = weights_Nk / weights_Nk.sum(-1, keepdim=True)
        if self.per_expert_scale is not None:
            weights_Nk = weights_Nk * self.per_expert_scale[chosen_Nk]
        return Routing(
            probs_NE=probs_NE, chosen_Nk=chosen_Nk, weights_Nk=weights_Nk * self.routed_scale
        )

    def _scored(self, logits_NE: Tensor) -> Tensor:
        if self.scoring == "sqrtsoftplus_renorm":
            return F.softplus(logits_NE).sqrt()
        sigmoid = self.scoring.startswith("sigmoid")
        return logits_NE.sigmoid() if sigmoid else logits_NE.softmax(-1)

    def _limit_to_groups(self, scores_NE: Tensor) -> Tensor:
        if self.groups is None:
            return scores_NE
        grouped = scores_NE.unflatten(-1, (self.groups.n_groups, -1))
        best = grouped.topk(1 if self.groups.score == "max" else 2, dim=-1).values.sum(-1)
        groups = best.topk(self.groups.top_groups, dim=-1).indices
        allowed = torch.zeros_like(best).scatter(-1, groups, 1.0).bool()
        return grouped.masked_fill(~allowed.unsqueeze(-1), -torch.inf).flatten(-2)


def mixed(logits_NE: Tensor, top_k: int, jitter: float) -> tuple[Tensor, Tensor]:
    """Choose experts and their weights by SparseMixer as it runs outside training, each [N, k].

    Liu et al. 2024, arXiv:2409.12136, and Phi-3.5-MoE's code. One expert after another: the best
    of those left, weighted by its softmax among those left whose logit is within 2·jitter of the
    best, relative to the larger of the two in absolute value. The weights do not sum to 1.
    """
    left = logits_NE
    chosen, weights = [], []
    for _ in range(top_k):
        best, expert = left.max(dim=-1, keepdim=True)
        far = (best - logits_NE) / logits_NE.abs().maximum(best) > 2 * jitter
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, expert))
        chosen.append(expert)
        left = left.scatter(-1, expert, -torch.inf)
    return torch.cat(chosen, dim=-1), torch.cat(weights, dim=-1)


def apply_rows(x_RD: Tensor, weight_EMD: Tensor, expert_R: Tensor, counts: list[int]) -> Tensor:
    """Multiply row r by the matrix of its expert: [R, D] -> [R, M], rows sorted by expert.

    With `counts` (rows per expert) one product per expert; without, on meta, where nobody can
    know how many rows an expert gets, one product per row: the same multiply-adds.
    """
    if not counts:
        # [r, m, d] @ [r, d, 1]
        return torch.bmm(weight_EMD[expert_R], x_RD.unsqueeze(-1)).squeeze(-1)
    # an empty start: there may be no rows at all
    parts = [x_RD.new_empty(0, weight_EMD.shape[1])]
    # unbound at once: the gradient of each slice alone would be as large as all of them
    each = zip(x_RD.split(counts), weight_EMD.unbind(), strict=True)
    parts += [rows @ weight_MD.T for rows, weight_MD in each if len(rows)]
    return torch.cat(parts)


class Experts(nn.Module):
    """All experts of a layer in 3-D tensors [E, out, in]; gate and up in one, gate first.

    `like` says their activation and whether they have a gate. Zero experts have numbers from E on
    and give back what they get (LongCat-Flash, arXiv:2509.01322, eq. 1); with `unread` of them, the
    first tensor has rows for them that nobody reads, as transformers' class stores it.
    """

    def __init__(self, part: parts.Mixture, d_model: int, like: parts.FeedForward) -> None:
        super().__init__()
        n_experts, d_ff, bias, gated = part.n_experts, part.d_ff, part.bias, like.gated
        self.weigh_input = part.router_scales_input
        self.n_experts, self.top_k, self.gated = n_experts, part.top_k, gated
        self.n_zero = 0 if part.zero is None else part.zero.n_experts
        self.unread = self.n_zero if part.zero is not None and part.zero.rows else 0
        self.activation, self.swish_beta, self.limit = like.activation, like.swish_beta, like.limit
        up = 2 * d_ff if gated else d_ff
        self.up_name = "gate_up_proj" if gated else "up_proj"
        n_first = n_experts + self.unread
        shapes = {self.up_name: (n_first, up, d_model), "down_proj": (n_experts, d_model, d_ff)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
            bias_shape = torch.zeros(shape[:2]) if bias else None
            self.register_parameter(
                f"{name}_bias", None if bias_shape is None else nn.Parameter(bias_shape)
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise each expert's matrices like a `Linear` of that shape; on meta do nothing."""
        for weight in (self.get_parameter(self.up_name), self.get_parameter("down_proj")):
            if not weight.is_meta:
                nn.init.uniform_(weight, -(weight.shape[-1] ** -0.5), weight.shape[-1] ** -0.5)

    def forward(self, x_ND: Tensor, chosen_Nk: Tensor, weights_Nk: Tensor) -> Tensor:
        """Send each token through its `top_k` experts, weighted and summed: [N, D] -> [N, D].

        With `weigh_input` the weight multiplies an expert's input (Llama 4), not its output. On
        meta nobody chooses a zero expert: what runs is the most that a token can use.
        """
        expert_R, order = chosen_Nk.flatten().sort(stable=True)
        token_R = order // chosen_Nk.shape[-1]
        n_all = self.n_experts + self.n_zero
        counts = [] if x_ND.is_meta else expert_R.bincount(minlength=n_all).tolist()
        weight_R1 = weights_Nk.flatten()[order].unsqueeze(-1).to(x_ND.dtype)
        x_RD = x_ND[token_R] * weight_R1 if self.weigh_input else x_ND[token_R]
        if counts and self.n_zero:  # whose rows are the last ones
            own = counts[: self.n_experts]
            y_RD = self._computed(x_RD[: sum(own)], expert_R[: sum(own)], own)
            y_RD = torch.cat((y_RD, x_RD[sum(own) :]))
        else:
            y_RD = self._computed(x_RD, expert_R, counts)
        y_RD = y_RD if self.weigh_input else y_RD * weight_R1
        return torch.zeros_like(x_ND).index_add(0, token_R, y_RD)

    def _computed(self, x_RD: Tensor, expert_R: Tensor, counts: list[int]) -> Tensor:
        """Run each of the rows [R, D] through its expert: [R, D]."""
        hidden = self.rows(x_RD, self.up_name, expert_R, counts)
        if self.gated:
            gate_RM, up_RM = hidden.chunk(2, dim=-1)
            hidden = gate(gate_RM, up_RM, self.activation, self.swish_beta, self.limit)
        else:
            hidden = activate(hidden, self.activation, self.swish_beta)
        y_RD = self.rows(hidden, "down_proj", expert_R, counts)
        return y_RD

    def rows(self, x_RD: Tensor, name: str, expert_R: Tensor, counts: list[int]) -> Tensor:
        """Multiply rows [R, D] by their experts' matrices `name`, and add any bias: [R, M]."""
        weight_EMD: Tensor = self.get_parameter(name)
        if self.unread and name == self.up_name:
            weight_EMD = weight_EMD[: self.n_experts]
        y = apply_rows(x_RD, weight_EMD, expert_R, counts)
        bias_EM = getattr(self, f"{name}_bias")
        return y if bias_EM is None else y + bias_EM[expert_R]


class MixtureOfExperts(nn.Module):
    """Router, routed experts and, for every token, shared experts (one FFN of their joint width).

    DeepSeekMoE, arXiv:2401.06066, eq. 9-11; the shared experts' optional gate is Qwen's. Routed
    experts may read and write a latent between two projections (Nemotron 3).
    """

    def __init__(
        self,
        part: parts.Mixture,
        d_model: int,
        like: parts.FeedForward,
        *,
        eps: float = 1e-5,
        n_hashed: int | None = None,
    ) -> None:
        super().__init__()
        self.gate = Router(part, d_model, eps=eps, n_hashed=n_hashed)
        width = d_model if part.latent is None else part.latent
        self.fc1_latent_proj = self.fc2_latent_proj = None
        if part.latent is not None:
            self.fc1_latent_proj = Linear(d_model, width, bias=like.bias)
            self.fc2_latent_proj = Linear(width, d_model, bias=like.bias)
        self.experts = Experts(part, width, like)
        self.shared_experts = self.shared_expert_gate = None
        shared = part.shared
        if shared is not None:
            width = shared.n_experts * (part.d_ff if shared.d_ff is None else shared.d_ff)
            self.shared_experts = feed_forward(like, d_model, width=width)
            self.shared_expert_gate = Linear(d_model, 1, bias=False) if shared.gate else None

    def forward(
        self, x_BSD: Tensor, *, routed_BSD: Tensor | None = None, tokens: Tensor | None = None
    ) -> Tensor:
        """Sum the outputs of routed and shared experts: [B, S, D] -> [B, S, D].

        The router reads `routed_BSD` where it is given, a table of experts the `tokens`.
        """
        x_ND = x_BSD.flatten(0, -2)
        routed_ND = x_ND if routed_BSD is None else routed_BSD.flatten(0, -2)
        routing = self.gate(routed_ND, tokens)
        read = x_ND if self.fc1_latent_proj is None else self.fc1_latent_proj(x_ND)
        y_ND = self.experts(read, routing.chosen_Nk, routing.weights_Nk)
        if self.fc2_latent_proj is not None:
            y_ND = self.fc2_latent_proj(y_ND)
        if self.shared_experts is not None:
            shared_ND = self.shared_experts(x_ND)
            if self.shared_expert_gate is not None:
                shared_ND = self.shared_expert_gate(x_ND).sigmoid() * shared_ND
            y_ND = y_ND + shared_ND
        return y_ND.view_as(x_BSD)


def load_balancing_loss(routing: Routing) -> Tensor:
    """Compute E · Σ_e (share of choices of e) · (mean router probability of e), over N tokens.

    Fedus et al. 2021, arXiv:2101.03961, eq. 4-6; 1 when both are uniform. The share is of all
    N·k choices, so that it sums to 1 for any k; it has no gradient, the probability has.
    """
    n_experts = routing.probs_NE.shape[-1]
    probs_NE = routing.probs_NE / routing.probs_NE.sum(-1, keepdim=True)
    ones = torch.ones_like(routing.chosen_Nk, dtype=probs_NE.dtype).flatten()
    counts_E = probs_NE.new_zeros(n_experts).index_add(0, routing.chosen_Nk.flatten(), ones)
    return n_experts * torch.dot(counts_E / counts_E.sum(), probs_NE.mean(0))
