"""Says in a few signs what each of our own modules computes; nothing of others' modules."""

from __future__ import annotations

from torch import nn

from metacount.modules.altup import AltUp, Copies, Laurel, LayerInput, LayerInputs
from metacount.modules.attention import Attention
from metacount.modules.block import Block
from metacount.modules.borrowed import BorrowingAttention
from metacount.modules.ends import HeadTransform, Pooler
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.mla import LatentAttention
from metacount.modules.moe import Experts, MixtureOfExperts, Router
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.notation import activated, factor, heads, latent_heads

# A block of each placement, f its attention or feed-forward: the lines of `Block`'s docstring. In
# front of x stands `alpha`, in front of what is added to it `scale`.
PLACEMENTS = {
    "pre": "{alpha}x + {scale}f(norm(x))",
    "post": "norm({alpha}x + {scale}f(x))",
    "sandwich": "{alpha}x + {scale}norm(f(norm(x)))",
    "post_branch": "{alpha}x + {scale}norm(f(x))",
    "parallel": "{alpha}x + {scale}attn(norm(x)) + {scale}mlp(norm(x))",
    "parallel_two": "{alpha}x + {scale}attn(norm(x)) + {scale}mlp(norm'(x))",
}
STREAM = "{alpha}norm(x) + {scale}f(norm(x))"  # with the norms of `pre`

# What stands around blocks and in them beside their branches, of Gemma 3n.
AROUND: dict[type[nn.Module], str] = {
    AltUp: "predicts all copies of the stream, corrects them by one",
    Copies: "copies of the stream, and their mean",
    Laurel: "x + norm(right(left(x)))",
    LayerInputs: "(table[token] + norm(projection(x))) / √2",
    LayerInput: "norm(projection(act(gate(x)) · input))",
}


def computes(module: nn.Module) -> str:
    """Say what a module computes, or how many of its parts it has;
    empty where its class says it all.

    >>> computes(RMSNorm(5)), computes(nn.Linear(2, 3))
    ('RMSNorm', '')
    """
    if isinstance(module, Attention):
        return _attention(module)
    if isinstance(module, LatentAttention):
        return latent_heads(module.n_heads, module.rank, module.rope)
    if isinstance(module, FeedForward | GatedFeedForward):
        gated = isinstance(module, GatedFeedForward)
        said = activated(module.activation, module.swish_beta, gated=gated)
        share = module.sparsity if isinstance(module, GatedFeedForward) else None
        return said if share is None else f"{said}, gate above its {share:g} quantile"
    if isinstance(module, MixtureOfExperts):
        shared = " + shared" if module.shared_experts is not None else ""
        return f"Σ weight · expert{shared}"
    if isinstance(module, Experts):
        inside = activated(module.activation, module.swish_beta, gated=module.gated)
        zero = f" + {module.n_zero} zero" if module.n_zero else ""
        return f"{module.top_k} of {module.n_experts}{zero} per token, {inside}"
    if isinstance(module, Router):
        scores = "sigmoid" if module.scoring.startswith("sigmoid") else "softmax"
        return f"{scores}, top {module.top_k}"
    if isinstance(module, LayerNorm | RMSNorm):
        return type(module).__name__
    if isinstance(module, Pooler):
        return "tanh(dense(first token))"
    if isinstance(module, HeadTransform):
        inside = "dense" if module.activation == "identity" else f"{module.activation}(dense)"
        return f"norm({inside})"
    if isinstance(module, Block):
        return _block(module)
    return AROUND.get(type(module), "")


def _attention(module: Attention) -> str:
    borrows = isinstance(module, BorrowingAttention)
    projections = (module.q_proj,) if borrows else (module.q_proj, module.k_proj)
    counts = [projection.out_features // module.head_dim for projection in projections]
    said = f"{counts[0]} heads, keys and values of another layer" if borrows else heads(*counts)
    return said if module.rotary_dim is None else f"{said}, RoPE"


def _block(module: Block) -> str:
    known = next(form for name, form in PLACEMENTS.items() if _is(module, name))
    form = STREAM if module.adds_to_normed else known
    said = [form.format(alpha=factor(module.alpha), scale=factor(module.residual_scale))]
    if module.window is not None:
        said.append(f"window {module.window}")
    if module.beside:
        said.append("moe added a layer later")
    return ", ".join(said)


def _is(module: Block, placement: str) -> bool:
    """Tell whether a block has the norms of a placement; `deep` is `post` with a weight."""
    from metacount.modules.block import NORMS

    parallel = module.parallel == placement.startswith("parallel")
    return module.norms == NORMS[placement] and parallel
