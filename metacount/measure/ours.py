"""Our own modules, measured: roles, parameters, FLOPs, and a model run over a workload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from metacount.measure.alike import OF_LAYER, SHARED, Folding, shape_of
from metacount.measure.counter import (
    ROLES,
    Book,
    FlopCounter,
    Forwards,
    MakeCounter,
    MeasuredCache,
    MeasuredFlops,
    MeasuredParams,
    MeasuredRun,
    UnclaimedTensor,
    measured,
    stored_buffers,
)
from metacount.measure.torch_private import unwatched
from metacount.modules.altup import AltUp, Copies, Laurel, LayerInput, LayerInputs, LayerTable
from metacount.modules.attention import (
    Attention,
    BlockIndexer,
    BlockScores,
    BorrowingAttention,
    Indexer,
    IndexScores,
    ScaledDotProduct,
    Visibility,
)
from metacount.modules.block import Block
from metacount.modules.cache import Cache, LayerCache, Lent, StateCache
from metacount.modules.compressed import (
    CompressedAttention,
    HyperConnection,
    HyperHead,
    PairProducts,
)
from metacount.modules.convolution import RecurrentBlock, ShortConvolution
from metacount.modules.delta import GatedDelta, KimiDelta
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.lightning import Lightning
from metacount.modules.mla import LatentAttention
from metacount.modules.mlstm import MLstm, MultiHeadNorm
from metacount.modules.model import (
    EmbeddingProjection,
    HeadTransform,
    Model,
    MultiTokenPrediction,
    OutputHead,
    Pooler,
    PositionTable,
    PredictionModule,
    TokenEmbedding,
    TypeTable,
)
from metacount.modules.moe import Experts, MixtureOfExperts
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.modules.position import RelativeBias, RelativeProjection, RelativeScores
from metacount.modules.shared_block import AttentionAdapter, FeedForwardAdapter, SharedUse
from metacount.modules.state_space import GatedNorm, Mamba, Mamba2
from metacount.spec import Workload
from metacount.tensors import tensor_bytes

OF_LAYER.update([LayerCache, StateCache])
SHARED.update([Lent, Visibility])

ROLE_OF: dict[type[nn.Module], str] = {
    TokenEmbedding: "embedding",
    TypeTable: "embedding",
    EmbeddingProjection: "embedding",
    PositionTable: "position",
    RelativeBias: "position",
    RelativeProjection: "position",
    Attention: "attention",
    BorrowingAttention: "attention",
    ScaledDotProduct: "attention",
    LatentAttention: "attention",
    CompressedAttention: "attention",
    PairProducts: "attention",
    HyperConnection: "other",
    HyperHead: "other",
    GatedDelta: "recurrent",
    KimiDelta: "recurrent",
    Lightning: "recurrent",
    Mamba: "recurrent",
    Mamba2: "recurrent",
    MLstm: "recurrent",
    SharedUse: "other",  # its linear layer
    AttentionAdapter: "attention",
    FeedForwardAdapter: "ffn",
    Indexer: "attention",
    IndexScores: "attention",
    BlockIndexer: "attention",
    BlockScores: "attention",
    ShortConvolution: "recurrent",
    RecurrentBlock: "recurrent",
    FeedForward: "ffn",
    GatedFeedForward: "ffn",
    MixtureOfExperts: "moe",
    LayerNorm: "norm",
    RMSNorm: "norm",
    GatedNorm: "norm",
    MultiHeadNorm: "norm",
    AltUp: "other",
    Copies: "other",
    Laurel: "other",
    LayerTable: "embedding",
    LayerInputs: "other",  # its projection
    LayerInput: "other",
    PredictionModule: "other",  # its projection; what else it holds has a role of its own
    HeadTransform: "head",
    OutputHead: "head",
    Pooler: "other",
}


def role_of(path: list[nn.Module]) -> str | None:
    """Find the role that the modules from the root to an owner give:
    that of the innermost that has one.

    One exception: in a MoE layer everything but a norm is `moe`, the shared experts' FFN too.
    None where no module on the path has a role.
    """
    kinds = (
        type(module) if type(module) in ROLE_OF else type(getattr(module, "base", module))
        for module in path  # an adapter is of its layer
    )
    roles = [ROLE_OF[kind] for kind in kinds if kind in ROLE_OF]
    if not roles:
        return None
    return "moe" if "moe" in roles and roles[-1] != "norm" else roles[-1]


def owned(root: nn.Module) -> Iterator[tuple[list[nn.Module], str, Tensor]]:
    """Yield (modules from the root to the owner, name of the tensor, tensor), a tensor once."""
    seen: set[int] = set()

    def walk(path: list[nn.Module]) -> Iterator[tuple[list[nn.Module], str, Tensor]]:
        for name, tensor in path[-1].named_parameters(recurse=False):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield path, name, tensor
        for child in path[-1].children():
            yield from walk([*path, child])

    return walk([root])


def active_values(owner: nn.Module, tensor: Tensor) -> int:
    """Count the values of `tensor` that one token uses: of E fused experts, k."""
    if not isinstance(owner, Experts):
        return tensor.numel()
    if tensor.shape[0] not in (owner.n_experts, owner.n_experts + owner.unread):
        raise ValueError(
            f"an expert tensor of shape {tuple(tensor.shape)} does not start with "
            f"n_experts = {owner.n_experts}"
        )
    return tensor[0].numel() * owner.top_k


def measure_params(model: nn.Module) -> MeasuredParams:
    """Count every distinct parameter and every persistent buffer of `model`.

    Raises `UnclaimedTensor` for a parameter that no role claims.
    """
    by_role, active = dict.fromkeys(ROLES, 0), dict.fromkeys(ROLES, 0)
    token_table = 0
    shared = {
        id(p)
        for m in model.modules()
        if role_of([m]) == "head"
        for p in m.parameters(recurse=False)
    }
    for path, name, tensor in owned(model):
        role = role_of(path)
        if role is None:
            raise UnclaimedTensor(f"{type(path[-1]).__name__}.{name} {tuple(tensor.shape)}")
        by_role[role] += tensor.numel()
        active[role] += active_values(path[-1], tensor)
        if tensor is getattr(getattr(model, "embed_tokens", None), "weight", None):
            token_table += 0 if id(tensor) in shared else tensor.numel()
        if isinstance(path[-1], LayerTable):
            token_table += tensor.numel()
    return MeasuredParams(
        by_role=by_role,
        active_by_role=active,
        no_embed=sum(active.values()) - token_table,
        buffers=stored_buffers(model),
    )


# Modules that run nothing but products between positions.
PAIRWISE = (ScaledDotProduct, RelativeScores, IndexScores, BlockScores, PairProducts)
# Above this many pairs the mask is not laid out to be counted; the answer is then None.
MAX_PAIRS = 2**30


class ReferenceBook(Book):
    """Roles by the owner of a module; nothing of ours asks for data.

    A charge's detail is the visibility of the attention product being computed, None elsewhere.
    """

    def __init__(self, folding: Folding | None = None) -> None:
        self._visibility: list[Visibility] = []
        self._folding = folding

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role that the modules from the root to the running one give."""
        return role_of(path)

    def detail(self, path: list[nn.Module]) -> object:
        """Return which pairs an attention product computes."""
        pairwise = path and isinstance(path[-1], PAIRWISE)
        return self.hashable(self._visibility[-1]) if pairwise else None

    def kept_flops(self, flops: int, detail: Any) -> int | None:
        """Return the FLOPs of a product over the pairs that the mask keeps."""
        if detail is None:
            return flops
        pairs = kept_pairs(detail)
        if pairs is None:
            return None
        per_pair, rest = divmod(flops, detail.n_queries * detail.n_keys)
        if rest:
            raise ValueError(f"{flops} FLOPs are not a multiple of the pairs of {detail}")
        return int(per_pair * pairs)

    def hashable(self, value: object) -> object:
        """Return what stands for sizes and visibilities in a key: themselves, if ints."""
        return value

    def entered(self, args: tuple[object, ...]) -> None:
        """Note that a module's forward begins, perhaps with a visibility."""
        self._visibility += [a for a in args if isinstance(a, Visibility)][:1]

    def left(self, args: tuple[object, ...]) -> None:
        """Note that a module's forward ends."""
        if any(isinstance(a, Visibility) for a in args):
            self._visibility.pop()

    @contextmanager
    def running(self, counter: FlopCounter, model: nn.Module) -> Iterator[None]:
        """Run blocks that are alike once, on meta."""
        with (self._folding or _folding_of(model)).counting(counter):
            yield


def _folding_of(model: nn.Module) -> Folding:
    return Folding(_blocks(model) if all(p.is_meta for p in model.parameters()) else ())


def _blocks(model: nn.Module) -> Iterator[tuple[nn.Module, int, object]]:
    """Yield each block and its kind. Its code is handed no number: all have the same."""
    for block in model.modules():
        if isinstance(block, Block):
            held = ((name, shape_of(p, None)) for name, p in block.named_parameters())
            yield block, 0, (block.kind, tuple(held))


def reference_counter() -> FlopCounter:
    """Make a counter of what our own modules run."""
    return FlopCounter(ReferenceBook())


_KEPT: dict[Visibility, int] = {}


def kept_pairs(sees: Visibility) -> int | None:
    """Count the pairs that the mask keeps, by laying it out (in slices) and adding it up."""
    total = sees.n_queries * sees.n_keys
    if total > MAX_PAIRS:
        return None
    if sees not in _KEPT:
        rows = max(1, 2**22 // sees.n_keys)
        # outside of any counter: this is bookkeeping, not the model's work
        with unwatched():
            _KEPT[sees] = sum(
                int(sees.keep(torch.device("cpu"), slice(i, i + rows)).sum())
                for i in range(0, sees.n_queries, rows)
            )
    return _KEPT[sees]


class ReferenceForwards(Forwards):
    """Forwards of a model of ours, on meta."""

    def __init__(self, model: Model, workload: Any) -> None:
        super().__init__(model, workload)
        self.kind = model.spec.kind
        self.folding = _folding_of(model)
        self._memory: Tensor | None = None

    def forward(
        self, length: int, *, cache: Cache | None = None, counter: MakeCounter | None = None
    ) -> tuple[FlopCounter, Cache | None]:
        """Run a forward, of the encoder first where there is no cache yet."""
        model, run = self.model, self.workload
        book, absorbed = ReferenceBook(self.folding), cache is not None
        counting = (counter or self.counter)(book)
        with torch.no_grad(), counting.watching(model):
            if self.kind == "encoder":
                model(self._input(length))
                return counting, None
            prefix = 0
            if cache is None:
                cache, prefix = model.new_cache(), run.prefix_len
                if model.spec.has_encoder:
                    source = self._input(run.encoder_len)
                    self._memory = counting.called(model, model.encode, source)
                if isinstance(length, int):  # of a symbol nothing is asked
                    prefix = min(prefix, length)
            if type(length) is not int or length or self._memory is not None:
                tokens = self._input(length)
                model(
                    tokens,
                    memory_BTD=self._memory,
                    cache=cache,
                    prefix_len=prefix,
                    absorbed=absorbed,
                )
        return counting, cache

    def _input(self, length: int) -> Tensor:
        spec, batch = self.model.spec, self.workload.batch_size
        if spec.vocab_size is None:
            dtype = next(self.model.parameters()).dtype
            return torch.empty(batch, length, spec.d_model, device="meta", dtype=dtype)
        return torch.empty(batch, length, device="meta", dtype=torch.long)

    def before_last(self) -> Cache:
        """Return the cache of all tokens but the last, which continues a state, also where it is
        the only token that attention sees.
        """
        cache: Cache = super().before_last()
        if self.model.spec.recurrent != "none" and not any(
            layer_cache.states for layer_cache in cache.states
        ):
            _, of_one = self.forward(1)
            assert of_one is not None  # a model with a state is no encoder
            for empty, filled in zip(cache.states, of_one.states, strict=True):
                empty.states = filled.states
        return cache

    def measure_cache(self, cache: Cache) -> MeasuredCache:
        """Count the bytes of a cache, in the types of the model."""
        states = tuple(cache.state_tensors())
        return MeasuredCache(
            kv_bytes=tensor_bytes(cache.tensors()),
            cross_kv_bytes=tensor_bytes(t for layer in cache.cross for t in layer.tensors),
            state_bytes=tensor_bytes(states),
            states=states,
        )


class PredictionForwards(ReferenceForwards):
    """Forwards of prediction modules alone, the model itself not run.

    Each reads as many hidden states and next tokens as there are tokens.
    """

    def __init__(self, module: MultiTokenPrediction, workload: Workload) -> None:
        Forwards.__init__(self, module, workload)
        self.kind, self.folding = "decoder", _folding_of(module)

    def forward(
        self, length: int, *, cache: Cache | None = None, counter: MakeCounter | None = None
    ) -> tuple[FlopCounter, Cache]:
        """Run a forward of the modules, perhaps from a cache."""
        module, batch = self.model, self.workload.batch_size
        book, absorbed = ReferenceBook(self.folding), cache is not None
        counting = (counter or self.counter)(book)
        cache = cache or module.new_cache()
        if length:
            width, like = module.main.spec.d_model, next(module.parameters())
            hidden = torch.empty(batch, length, width, device="meta", dtype=like.dtype)
            shape = batch, length + len(module.layers) - 1
            tokens = torch.empty(shape, device="meta", dtype=torch.long)
            with torch.no_grad(), counting.watching(module):
                module(hidden, tokens, cache=cache, absorbed=absorbed)
        return counting, cache

    def before_last(self) -> Cache:
        """Return the cache of all tokens but the last."""
        return self.forward(self.workload.seq_len - 1)[1]


def measure_forward(model: Model, workload: Workload) -> MeasuredRun:
    """Run `model` (on meta) over `workload` and measure it.

    The workload's dtype is the model's own: cache bytes are those of the tensors it makes.
    """
    return measured(ReferenceForwards(model, workload))


def measure_prediction(module: MultiTokenPrediction, workload: Workload) -> MeasuredRun:
    """Run prediction modules (on meta) over `workload` and measure them."""
    return measured(PredictionForwards(module, workload))


def measure_prefill(model: Model, workload: Workload) -> MeasuredFlops:
    """Run `model` (on meta) once over the whole workload."""
    return ReferenceForwards(model, workload).prefill()[0].report()
