"""A module as a tree, with what each of our own modules computes: what is shown of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from metacount.errors import InputError, nearest, shown
from metacount.measure.node import Node as Node
from metacount.measure.node import fold, places, total, walk
from metacount.measure.ours import active_values, role_of
from metacount.measure.torch_private import parameters_of, stored_buffers_of, tensors_of
from metacount.modules.altup import AltUp, Copies, Laurel, LayerInput, LayerInputs
from metacount.modules.attention import Attention, BorrowingAttention
from metacount.modules.block import Block
from metacount.modules.compressed import CompressedAttention, HyperConnection, HyperHead
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.mla import LatentAttention
from metacount.modules.model import HeadTransform, Pooler
from metacount.modules.moe import Experts, MixtureOfExperts, Router
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.tensors import DTYPES, tensor_bytes
from metacount.units import activated, factor, heads, latent_heads

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

# What stands around blocks and in them beside their branches, of Gemma 3n and DeepSeek-V4.
AROUND: dict[type[nn.Module], str] = {
    AltUp: "predicts all copies of the stream, corrects them by one",
    Copies: "copies of the stream, and their mean",
    Laurel: "x + norm(right(left(x)))",
    LayerInputs: "(table[token] + norm(projection(x))) / √2",
    LayerInput: "norm(projection(act(gate(x)) · input))",
    HyperConnection: "Σ pre·x for a branch, comb·x + post·f behind it",
    HyperHead: "Σ pre·x",
}


def computes(module: nn.Module) -> str:
    """Say what a module computes, or how many of its parts it has;
    empty where its class says it all.

    >>> computes(RMSNorm(5)), computes(nn.Linear(2, 3))
    ('RMSNorm', '')
    """
    if isinstance(module, Attention | CompressedAttention):
        return _attention(module)
    if isinstance(module, LatentAttention):
        return latent_heads(module.n_heads, module.rank, module.rope)
    if isinstance(module, FeedForward | GatedFeedForward):
        gated = isinstance(module, GatedFeedForward)
        text = activated(module.activation, module.swish_beta, gated=gated)
        share = module.sparsity if isinstance(module, GatedFeedForward) else None
        return text if share is None else f"{text}, gate above its {share:g} quantile"
    if isinstance(module, MixtureOfExperts):
        shared = " + shared" if module.shared_experts is not None else ""
        return f"Σ weight · expert{shared}"
    if isinstance(module, Experts):
        inside = activated(module.activation, module.swish_beta, gated=module.gated)
        zero = f" + {module.n_zero} zero" if module.n_zero else ""
        return f"{module.top_k} of {module.n_experts}{zero} per token, {inside}"
    if isinstance(module, Router):
        scores = "sigmoid" if module.scoring.startswith("sigmoid") else "softmax"
        if module.scoring.startswith("sqrtsoftplus"):
            scores = "sqrt(softplus)"
        if module.token_experts is not None:
            return f"{scores}, {module.top_k} by the token's number"
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


def _attention(module: Attention | CompressedAttention) -> str:
    if isinstance(module, CompressedAttention):
        ratio = 0 if module.compressor is None else module.compressor.ratio
        more = f", entries of {ratio} tokens" if ratio else ""
        return f"{module.n_heads} heads, one key{more}, RoPE"
    borrows = isinstance(module, BorrowingAttention)
    projections = (module.q_proj,) if borrows else (module.q_proj, module.k_proj)
    counts = [projection.out_features // module.head_dim for projection in projections]
    text = f"{counts[0]} heads, keys and values of another layer" if borrows else heads(*counts)
    return text if module.rotary_dim is None else f"{text}, RoPE"


def _block(module: Block) -> str:
    known = next(form for name, form in PLACEMENTS.items() if _is(module, name))
    form = STREAM if module.adds_to_normed else known
    forms = [form.format(alpha=factor(module.alpha), scale=factor(module.residual_scale))]
    if module.window is not None:
        forms.append(f"window {module.window}")
    if module.beside:
        forms.append("moe added a layer later")
    return ", ".join(forms)


def _is(module: Block, placement: str) -> bool:
    """Tell whether a block has the norms of a placement; `deep` is `post` with a weight."""
    from metacount.modules.block import NORMS

    parallel = module.parallel == placement.startswith("parallel")
    return module.norms == NORMS[placement] and parallel


DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}

ActiveValues = Callable[[nn.Module, Tensor], int]
RoleOf = Callable[[list[nn.Module]], str | None]


def module_tree(
    model: nn.Module,
    *,
    flops: Mapping[str, int] | None = None,
    active: ActiveValues | None = active_values,
) -> Node:
    """Build the folded tree of `model`, its root named after its class. See `whole_tree`."""
    return fold(whole_tree(model, flops=flops, active=active))


def whole_tree(
    model: nn.Module,
    *,
    flops: Mapping[str, int] | None = None,
    active: ActiveValues | None = active_values,
    role: RoleOf = role_of,
) -> Node:
    """Build the tree of `model`, unfolded, its root named after its class.

    `flops` says by full name what each module ran itself; `active` how many values of a tensor one
    token uses, None where that is not known; `role` the role of the last module of a path.
    """
    return _Planter(flops, active, role).node("", type(model).__name__, [model])


def node_at(root: Node, path: str) -> Node:
    """Find the node of a whole tree at a path, or at a path that ends so; of layers 0-2, layer 0.

    Raises `InputError` for none, and for several that are not one inside the other.
    """
    wanted = [re.sub(r"^(\d+)-\d+$", r"\1", step) for step in path.split(".")]
    nodes = {node.path: node for node in walk(root)}
    if ".".join(wanted) in nodes:
        return nodes[".".join(wanted)]
    ends = [known for known in nodes if known.split(".")[-len(wanted) :] == wanted]
    if len(ends) == 1:
        return nodes[ends[0]]
    if ends:
        some = ", ".join([*ends[:2], "..."][: len(ends)])
        raise InputError(
            f"--only: {shown(path)} is the end of {len(ends)} paths; give one of them: {some}"
        )
    known = {known for known in places(fold(root)) if known}
    top = ", ".join(child.path for child in root.children if child.path)
    remedy = nearest(path, known, f"it has {top}")
    raise InputError(f"--only: the model has no module {shown(path)}; {remedy}")


class _Planter:
    """Makes the nodes of one model."""

    def __init__(
        self, flops: Mapping[str, int] | None, active: ActiveValues | None, role: RoleOf
    ) -> None:
        self._flops, self._active, self._role = flops, active, role
        self._places: dict[int, str] = {}  # where each tensor was seen first, by its id
        self._kinds: dict[object, int] = {}

    def node(self, place: str, name: str, path: list[nn.Module]) -> Node:
        """Build the node of the last module of `path`, which stands at `place` in the model."""
        module = path[-1]
        prefix = f"{place}." if place else ""
        own: dict[str, Tensor] = {}
        tied: dict[str, str] = {}
        for key, tensor in module.named_parameters(recurse=False):
            first = self._places.setdefault(id(tensor), f"{prefix}{key}")
            if first == f"{prefix}{key}":
                own[key] = tensor
            else:
                tied[key] = first
        nodes = [
            self.node(f"{prefix}{key}", key, [*path, child])
            for key, child in module.named_children()
        ]
        children = tuple(
            child for child in nodes if child.params or child.tied or child.buffers or child.flops
        )
        active = {
            key: None if self._active is None else self._active(module, tensor)
            for key, tensor in own.items()
        }
        own_flops = 0 if self._flops is None else self._flops.get(place, 0)
        dtypes = {DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype)) for tensor in own.values()}
        dtypes |= {child.dtype for child in children if child.dtype}
        made = Node(
            name=name,
            path=place,
            module=type(module).__name__,
            role=self._role(path),
            computes=computes(module),
            count=1,
            tensors={key: tuple(tensor.shape) for key, tensor in own.items()},
            active_tensors=active,
            bytes_of={key: tensor_bytes([tensor]) for key, tensor in own.items()},
            tied=tied,
            buffers={key: tuple(b.shape) for key, b in module.named_buffers(recurse=False)},
            unstored=frozenset(tensors_of(module))
            - {*parameters_of(module), *stored_buffers_of(module)},
            params=sum(tensor.numel() for tensor in own.values()) + sum(c.params for c in children),
            active=total([*active.values(), *(child.active for child in children)]),
            bytes=tensor_bytes(own.values()) + sum(child.bytes for child in children),
            dtype=dtypes.pop() if len(dtypes) == 1 else "mixed" if dtypes else "",
            flops=None if self._flops is None else own_flops + sum(c.flops or 0 for c in children),
            own_flops=own_flops,
            fused=(module.n_experts, module.top_k) if isinstance(module, Experts) else None,
            alike=0,
            children=children,
        )
        return replace(made, alike=self._kind(made))

    def _kind(self, node: Node) -> int:
        """Give one number to nodes between which there is no difference but their place."""
        key = (
            node.module,
            node.computes,
            tuple(node.tensors.items()),
            tuple(node.tied.items()),
            tuple(node.buffers.items()),
            node.active,
            node.bytes,
            node.own_flops,
            tuple((child.name, child.alike) for child in node.children),
        )
        return self._kinds.setdefault(key, len(self._kinds))
