"""Mixture of experts: routed and shared experts, the router, and which layers have them."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.spec.attention import at_most, divides
from metacount.spec.field import MAX_EXPERTS, MAX_LAYERS, choice, flag, number, part, size, where
from metacount.spec.law import Law


@part
class SharedExperts:
    """Experts that see every token. `d_ff` None: as wide as a routed one."""

    n_experts: int = size(
        "n_shared_experts",
        "E_s",
        "experts that see every token",
        "experts",
        "num_shared_experts num_shared_expert moe_num_shared_experts expert_shared_count",
        default=0,
        least=0,
        most=MAX_EXPERTS,
    )
    d_ff: int | None = size(
        "d_ff_shared",
        "m_s",
        "hidden width of one shared expert",
        "values",
        "shared_expert_intermediate_size shared_intermediate_size"
        " moe_shared_expert_intermediate_size expert_shared_feed_forward_length",
        default=None,
    )
    gate: bool = flag("shared_expert_gate", "a sigmoid gate on the shared experts", default=False)


@part
class Groups:
    """Groups of experts, of which a token may use a few."""

    n_groups: int = size(
        "n_groups",
        "G",
        "groups that the experts are divided into",
        "groups",
        "n_group n_expert_groups moe_router_num_groups expert_group_count",
        most=MAX_EXPERTS,
    )
    top_groups: int = size(
        "top_groups",
        "G_k",
        "groups that a token may use",
        "groups",
        "topk_group n_limited_groups moe_router_group_topk expert_group_used_count",
        most=MAX_EXPERTS,
    )
    score: str = choice(
        "group_score", "how a group of experts is scored", "max", "top2_sum", default="top2_sum"
    )

    needed = "by group-limited routing"

    def check(self) -> None:
        """Raise `SpecError` for more groups than there are."""
        at_most("top_groups", self.top_groups, "n_groups", self.n_groups)


@part
class ZeroExperts:
    """Experts without weights that give back what they get (LongCat-Flash)."""

    n_experts: int = size(
        "n_zero_experts",
        "E_z",
        "experts without weights, which give back what they get",
        "experts",
        "zero_expert_num",
        default=0,
        least=0,
        most=MAX_EXPERTS,
    )
    rows: bool = flag(
        "zero_expert_rows",
        "a first matrix stored for each zero expert, which no token reads (transformers' class)",
        default=False,
    )


@part
class Mixture:
    """Routed experts in place of the feed-forward, in the layers that `law` names."""

    needed = "with n_experts"

    n_experts: int = size(
        "n_experts",
        "E",
        "routed experts of one layer",
        "experts",
        "num_local_experts n_routed_experts num_experts n_expert expert_count moe_num_experts"
        " num_moe_experts",
        most=MAX_EXPERTS,
    )
    top_k: int = size(
        "top_k",
        "k",
        "routed experts per token",
        "experts",
        "num_experts_per_tok num_selected_experts n_activated_experts n_expert_per_token"
        " expert_used_count moe_top_k moe_topk moe_k moe_router_topk num_experts_per_token",
        most=MAX_EXPERTS,
    )
    d_ff: int = size(
        "d_ff_expert",
        "m_e",
        "hidden width of one expert",
        "values",
        "moe_intermediate_size moe_inter_dim moe_ffn_hidden_size expert_feed_forward_length"
        " intermediate_size ffn_hidden_size",
    )
    n_dense_layers: int = size(
        "n_dense_layers",
        "N_0",
        "leading blocks with a dense FFN",
        "blocks",
        "first_k_dense_replace leading_dense_block_count moe_layer_start_index",
        default=0,
        least=0,
        most=MAX_LAYERS,
    )
    every: int = size(
        "moe_every",
        "s",
        "one MoE layer every so many",
        "blocks",
        "moe_layer_freq decoder_sparse_step encoder_sparse_step interleave_moe_layer_step"
        " expert_layer_period moe_layer_interval",
        default=1,
        most=MAX_LAYERS,
    )
    offset: int = size(
        "moe_offset",
        "s_0",
        "shift of that pattern: blocks i with i + 1 - s_0 a multiple of s",
        "blocks",
        default=0,
        least=0,
        most=MAX_LAYERS,
    )
    shared: SharedExperts | None = where(
        "n_shared_experts",
        SharedExperts,
        "without shared experts",
        default=None,
    )
    zero: ZeroExperts | None = where(
        "n_zero_experts",
        ZeroExperts,
        "without zero experts",
        default=None,
    )
    router: str = choice(
        "router",
        "how scores become weights",
        "softmax",
        "softmax_renorm",
        "topk_softmax",
        "sigmoid",
        "sigmoid_renorm",
        default="softmax",
    )
    router_bias: bool = flag("router_bias", "a bias on the router", default=False)
    selection_bias: bool = flag(
        "selection_bias",
        "a buffer added to the scores for the choice only (DeepSeek-V3)",
        default=False,
    )
    groups: Groups | None = where("n_groups", Groups, "without groups of experts", default=None)
    routed_scale: float = number(
        "routed_scale", "factor on the routed experts' output", default=1.0
    )
    mixer_jitter: float | None = number(
        "mixer_jitter", "experts chosen one after another, by SparseMixer (Phi-MoE)", default=None
    )
    router_scales_input: bool = flag(
        "router_scales_input",
        "the router's weight multiplies an expert's input, not its output",
        default=False,
    )
    bias: bool = flag("expert_bias", "a bias on each matrix of each expert", default=False)

    def check(self) -> None:
        """Raise `SpecError` for a choice that the router cannot make."""
        at_most("top_k", self.top_k, "n_experts", self.n_experts)
        if self.mixer_jitter is not None:
            self._check_mixer()
        if self.groups is not None:
            if self.zero is not None:
                raise SpecError(
                    "n_zero_experts",
                    "is not defined for experts in groups",
                    self.zero.n_experts,
                    "leave n_zero_experts or n_groups out",
                )
            self._check_groups(self.groups)
        if self.offset >= self.every:
            raise SpecError(
                "moe_offset",
                f"must be below moe_every = {self.every}",
                self.offset,
                f"choose 0 to {self.every - 1}",
            )

    def _check_mixer(self) -> None:
        other = {
            "router": (self.router, "softmax"),
            "selection_bias": (self.selection_bias, False),
            "n_groups": (self.groups and self.groups.n_groups, None),
        }
        for name, (value, plain) in other.items():
            if value != plain:
                raise SpecError(
                    name, "has no meaning with mixer_jitter", value, f"leave {name} out"
                )

    def _check_groups(self, groups: Groups) -> None:
        divides("n_groups", groups.n_groups, "n_experts", self.n_experts)
        each = self.n_experts // groups.n_groups
        reachable = groups.top_groups * each
        if self.top_k > reachable:
            rule = f"must be at most the {reachable} experts of the chosen groups"
            raise SpecError("top_k", rule, self.top_k, f"choose 1 to {reachable}")
        if groups.score == "top2_sum" and each < 2:
            raise SpecError(
                "group_score",
                "top2_sum needs groups of two experts or more",
                groups.score,
                "choose max",
            )

    @property
    def n_scores(self) -> int:
        """Experts that the router scores: those that compute, and zero experts."""
        return self.n_experts if self.zero is None else self.n_experts + self.zero.n_experts

    @property
    def law(self) -> Law:
        """Which layers have experts."""
        return Law(after=self.n_dense_layers, every=self.every, offset=self.offset)
