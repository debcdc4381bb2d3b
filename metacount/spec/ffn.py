"""Feed-forward and mixture of experts: widths, activation, routed and shared experts, router."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.frozen import REQUIRED
from metacount.spec.attention import Law
from metacount.spec.field import (
    MAX_EXPERTS,
    MAX_LAYERS,
    at_most,
    below,
    choice,
    divides,
    flag,
    number,
    part,
    pattern,
    short,
    size,
    where,
)


@part
class FeedForward:
    """Two matrices, or three with a gate. `d_ff` None: every layer's is a mixture of experts.

    Experts are made alike (activation, gate), shared experts with the same biases too.
    """

    needed = "by a feed-forward"

    d_ff: int | None = size("d_ff", default=None)
    activation: str = choice(
        "activation",
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "relu2",
        "sigmoid",
        "identity",
        "clamped_swiglu",
        "xielu",
    )
    gated: bool = flag("gated", default=REQUIRED)
    bias: bool = flag("ffn_bias", default=False)
    swish_beta: float = number("swish_beta", default=1.0)
    gate_scale: float = number("gate_scale", default=1.0)
    limit: float | None = number("gate_limit", default=None)
    scale: float = number("ffn_scale", default=1.0)
    second: int | None = size("d_ff_second", default=None)
    second_pattern: str = pattern("d_ff_pattern", "M d_ff, W d_ff_second", "MMW", default="M")
    sparsity: float | None = number("activation_sparsity", default=None)
    sparsity_pattern: str = pattern(
        "sparsity_pattern", "T top values alone, F all values", "TTF", default="T"
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
            rule = "clamped_swiglu is a gated form"
            raise SpecError("activation", rule, "clamped_swiglu", "set gated")
        if self.activation == "xielu" and self.gated:
            raise SpecError("activation", "xielu is no gated form", "xielu", "set gated to false")
        if self.activation == "identity" and not self.gated:
            rule = "identity without a gate is one linear map"
            raise SpecError("activation", rule, "identity", "set gated (bilinear)")
        if self.gate_scale != 1.0 and not self.gated:
            rule = "belongs to a gated feed-forward"
            remedy = "set gated, or leave gate_scale out"
            raise SpecError("gate_scale", rule, self.gate_scale, remedy)
        if self.limit is not None and (not self.gated or self.activation == "clamped_swiglu"):
            rule = "belongs to a gated feed-forward without a limit of its own"
            raise SpecError("gate_limit", rule, self.limit, "leave gate_limit out")
        if self.swish_beta != 1.0 and self.activation != "silu":
            raise SpecError("swish_beta", "belongs to activation silu", self.swish_beta)
        self._check_patterns()

    def _check_patterns(self) -> None:
        if self.second is not None and "W" not in self.second_pattern:
            rule = "has no layer for d_ff_second"
            remedy = "put W in, or leave d_ff_second out"
            raise SpecError("d_ff_pattern", rule, self.second_pattern, remedy)
        if self.second is None and "W" in self.second_pattern:
            rule = f"is needed by d_ff_pattern {short(self.second_pattern)}"
            raise SpecError("d_ff_second", rule, None)
        if self.sparsity is None and self.sparsity_pattern != "T":
            rule = "has no meaning without activation_sparsity"
            raise SpecError("sparsity_pattern", rule, short(self.sparsity_pattern))
        if self.sparsity is None:
            return
        if self.sparsity >= 1:
            remedy = "choose one between 0 and 1"
            raise SpecError("activation_sparsity", "must be below 1", self.sparsity, remedy)
        if not self.gated:
            rule = "belongs to a gated feed-forward"
            remedy = "set gated, or leave activation_sparsity out"
            raise SpecError("activation_sparsity", rule, self.sparsity, remedy)
        if "T" not in self.sparsity_pattern:
            rule = "has no layer for activation_sparsity"
            remedy = "put T in, or leave activation_sparsity out"
            raise SpecError("sparsity_pattern", rule, short(self.sparsity_pattern), remedy)


@part
class SharedExperts:
    """Experts that see every token. `d_ff` None: as wide as a routed one."""

    n_experts: int = size("n_shared_experts", default=0, least=0, most=MAX_EXPERTS)
    d_ff: int | None = size("d_ff_shared", default=None)
    gate: bool = flag("shared_expert_gate", default=False)


@part
class Groups:
    """Groups of experts, of which a token may use a few."""

    n_groups: int = size("n_groups", most=MAX_EXPERTS)
    top_groups: int = size("top_groups", most=MAX_EXPERTS)
    score: str = choice("group_score", "max", "top2_sum", default="top2_sum")

    needed = "by group-limited routing"

    def check(self) -> None:
        """Raise `SpecError` for more groups than there are."""
        at_most("top_groups", self.top_groups, "n_groups", self.n_groups)


@part
class ZeroExperts:
    """Experts without weights that give back what they get (LongCat-Flash)."""

    n_experts: int = size("n_zero_experts", default=0, least=0, most=MAX_EXPERTS)
    rows: bool = flag("zero_expert_rows", default=False)


@part
class Mixture:
    """Routed experts in place of the feed-forward, in the layers that `law` names."""

    needed = "with n_experts"

    n_experts: int = size("n_experts", most=MAX_EXPERTS)
    top_k: int = size("top_k", most=MAX_EXPERTS)
    d_ff: int = size("d_ff_expert")
    latent: int | None = size("moe_latent_rank", default=None)
    n_dense_layers: int = size("n_dense_layers", default=0, least=0, most=MAX_LAYERS)
    n_hash_layers: int = size("n_hash_layers", default=0, least=0, most=MAX_LAYERS)
    every: int = size("moe_every", default=1, most=MAX_LAYERS)
    offset: int = size("moe_offset", default=0, least=0, most=MAX_LAYERS)
    shared: SharedExperts | None = where(
        "n_shared_experts", SharedExperts, without="without shared experts", default=None
    )
    zero: ZeroExperts | None = where(
        "n_zero_experts", ZeroExperts, without="without zero experts", default=None
    )
    router: str = choice(
        "router",
        "softmax",
        "softmax_renorm",
        "topk_softmax",
        "sigmoid",
        "sigmoid_renorm",
        "sqrtsoftplus_renorm",
        default="softmax",
    )
    router_bias: bool = flag("router_bias", default=False)
    selection_bias: bool = flag("selection_bias", default=False)
    bias_is_param: bool = flag("selection_bias_param", default=False)
    groups: Groups | None = where(
        "n_groups", Groups, without="without groups of experts", default=None
    )
    routed_scale: float = number("routed_scale", default=1.0)
    mixer_jitter: float | None = number("mixer_jitter", default=None)
    router_scales_input: bool = flag("router_scales_input", default=False)
    scaled_router: bool = flag("scaled_router", default=False)
    bias: bool = flag("expert_bias", default=False)

    def check(self) -> None:
        """Raise `SpecError` for a choice that the router cannot make."""
        at_most("top_k", self.top_k, "n_experts", self.n_experts)
        if self.bias_is_param and not self.selection_bias:
            rule = "has no meaning without selection_bias"
            raise SpecError("selection_bias_param", rule, True, "leave it out")
        if self.mixer_jitter is not None:
            self._check_mixer()
        if self.groups is not None:
            if self.zero is not None:
                rule = "is not defined for experts in groups"
                remedy = "leave n_zero_experts or n_groups out"
                raise SpecError("n_zero_experts", rule, self.zero.n_experts, remedy)
            self._check_groups(self.groups)
        below("moe_offset", self.offset, "moe_every", self.every)

    def _check_mixer(self) -> None:
        other = {
            "router": (self.router, "softmax"),
            "selection_bias": (self.selection_bias, False),
            "n_groups": (self.groups and self.groups.n_groups, None),
        }
        for name, (value, plain) in other.items():
            if value != plain:
                rule = "has no meaning with mixer_jitter"
                raise SpecError(name, rule, value, f"leave {name} out")

    def _check_groups(self, groups: Groups) -> None:
        divides("n_groups", groups.n_groups, "n_experts", self.n_experts)
        each = self.n_experts // groups.n_groups
        reachable = groups.top_groups * each
        if self.top_k > reachable:
            rule = f"must be at most the {reachable} experts of the chosen groups"
            raise SpecError("top_k", rule, self.top_k, f"choose 1 to {reachable}")
        if groups.score == "top2_sum" and each < 2:
            rule = "top2_sum needs groups of two experts or more"
            raise SpecError("group_score", rule, groups.score, "choose max")

    @property
    def n_scores(self) -> int:
        """Experts that the router scores: those that compute, and zero experts."""
        return self.n_experts if self.zero is None else self.n_experts + self.zero.n_experts

    @property
    def law(self) -> Law:
        """Which layers have experts."""
        return Law(after=self.n_dense_layers, every=self.every, offset=self.offset)
