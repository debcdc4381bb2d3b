"""Our own modules, measured: roles, parameters, FLOPs, and a model run over a workload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from metacount.measure.counter import (
    BUFFERS,
    ROLES,
    Book,
    Cost,
    FlopCounter,
    MeasuredCache,
    MeasuredFlops,
    MeasuredParams,
    MeasuredRun,
    UnclaimedTensor,
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
from metacount.modules.cache import Cache, LayerCache, StateCache
from metacount.modules.convolution import ShortConvolution
from metacount.modules.delta import GatedDelta, KimiDelta
from metacount.modules.ffn import FeedForward, GatedFeedForward
from metacount.modules.lightning import Lightning
from metacount.modules.mla import LatentAttention
from metacount.modules.mlstm import MLstm, MultiHeadNorm
from metacount.modules.model import (
    EmbeddingProjection,
    HeadTransform,
    Model,
    OutputHead,
    Pooler,
    PositionTable,
    TokenEmbedding,
    TypeTable,
)
from metacount.modules.moe import Experts, MixtureOfExperts
from metacount.modules.mtp import MultiTokenPrediction, PredictionModule
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.modules.position import RelativeBias, RelativeProjection, RelativeScores
from metacount.modules.rg_lru import RecurrentBlock
from metacount.modules.shared_block import AttentionAdapter, FeedForwardAdapter, SharedUse
from metacount.modules.state_space import GatedNorm, Mamba, Mamba2
from metacount.spec import Workload
from metacount.tensors import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


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
    adapted = [getattr(module, "base", module) for module in path]  # an adapter is of its layer
    roles = [ROLE_OF[type(module)] for module in adapted if type(module) in ROLE_OF]
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
        for n, p in m.named_parameters(recurse=False)
        if role_of([m]) == "head"
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
    buffers: dict[str, int] = {}
    for full_name, buffer in model.named_buffers():
        last = full_name.rpartition(".")[2]
        kind = BUFFERS.get(last, last)
        buffers[kind] = buffers.get(kind, 0) + buffer.numel()
    return MeasuredParams(
        by_role=by_role,
        active_by_role=active,
        no_embed=sum(active.values()) - token_table,
        buffers=buffers,
    )


# Modules that run nothing but products between positions.
PAIRWISE = (ScaledDotProduct, RelativeScores, IndexScores, BlockScores)
# Above this many pairs the mask is not laid out to be counted; the answer is then None.
MAX_PAIRS = 2**30


class ReferenceBook(Book):
    """Roles by the owner of a module; nothing of ours asks for data.

    A charge's detail is the visibility of the attention product being computed, None elsewhere.
    """

    def __init__(self) -> None:
        self._visibility: list[Visibility] = []

    def role(self, path: list[nn.Module]) -> str | None:
        """Return the role that the modules from the root to the running one give."""
        return role_of(path)

    def detail(self, path: list[nn.Module]) -> object:
        """Return which pairs an attention product computes."""
        pairwise = path and isinstance(path[-1], PAIRWISE)
        return self.hashable(self._visibility[-1]) if pairwise else None

    def kept(self, flops: int, detail: Any) -> int | None:
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
        blocks = [m for m in model.modules() if isinstance(m, Block)]
        record: dict[object, _Replay] = {}
        for block in blocks:
            vars(block)["forward"] = _once(block, counter, self.hashable, record)
        try:
            yield
        finally:
            for block in blocks:
                del vars(block)["forward"]


def reference_counter() -> FlopCounter:
    """Make a counter of what our own modules run."""
    return FlopCounter(ReferenceBook())


@dataclass(frozen=True, kw_only=True)
class _Replay:
    ran: Block  # whose cost it is
    cost: Cost
    out: object
    cached: tuple[tuple[tuple[Tensor, ...], int], ...]  # tensors kept, positions added
    states: tuple[tuple[dict[str, Tensor], int], ...]  # the same of mixers with a state


def _once(
    block: Block,
    counter: FlopCounter,
    hashable: Callable[[object], object],
    record: dict[object, _Replay],
) -> Callable[..., object]:
    """Wrap the block's forward to run once for each kind of block and shape of input, on meta only.

    Two blocks are of one kind when their class says so (`kind`), when their parameters have the
    same names and shapes, and when they get inputs of the same shapes.
    """
    forward = type(block).forward

    def run(x_BSD: Tensor, visibility: Visibility, **rest: Any) -> object:
        caches = [c for c in rest.values() if isinstance(c, LayerCache)]
        states = [c for c in rest.values() if isinstance(c, StateCache)]
        if not x_BSD.is_meta:
            return forward(block, x_BSD, visibility, **rest)
        given = tuple(
            (name, tuple(value.shape)) if isinstance(value, Tensor) else (name, value)
            for name, value in sorted(rest.items())
            if not isinstance(value, LayerCache | StateCache)
        )
        held = tuple((c.keep, c.length, tuple(t.shape for t in c.tensors)) for c in caches)
        read = tuple(
            (c.length, tuple((name, t.shape) for name, t in sorted(c.states.items())))
            for c in states
        )
        shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
        key = hashable(
            (block.kind, shapes, tuple(x_BSD.shape), x_BSD.dtype, visibility, given, held, read)
        )
        replay = record.get(key)
        if replay is None:
            before, read_before = [c.length for c in caches], [c.length for c in states]
            out, cost = counter.spent_in(lambda: forward(block, x_BSD, visibility, **rest))
            cached = tuple((c.tensors, c.length - n) for c, n in zip(caches, before, strict=True))
            kept = tuple(
                ({**c.states}, c.length - n) for c, n in zip(states, read_before, strict=True)
            )
            record[key] = _Replay(ran=block, cost=cost, out=out, cached=cached, states=kept)
            return out
        counter.replay(replay.cost, replay.ran, block)
        for cache, (tensors, added) in zip(caches, replay.cached, strict=True):
            cache.tensors = tuple(torch.empty_like(t) for t in tensors)
            cache.length += added
        for state, (by_name, added) in zip(states, replay.states, strict=True):
            state.states = {name: torch.empty_like(t) for name, t in by_name.items()}
            state.length += added
        return replay.out

    return run


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


def measure_forward(model: Model, workload: Workload) -> MeasuredRun:
    """Run `model` (on meta) over `workload` and measure it.

    The workload's dtype is the model's own: cache bytes are those of the tensors it makes.
    """
    batch, seq_len = workload.batch_size, workload.seq_len
    prefill = reference_counter()
    if model.spec.kind == "encoder":
        run_encoder(model, workload, prefill)
        return MeasuredRun(
            kind=model.spec.kind,
            prefill=prefill.report(),
            decode=None,
            cache=None,
            kv_bytes_per_token=None,
            counters=(prefill,),
        )
    cache, _ = run_prefill(model, workload, seq_len, prefill)
    single, _ = run_prefill(model, workload, 1, reference_counter())
    decode = reference_counter()
    run_decode(model, workload, decode)
    per_token = tensor_bytes(t for layer in single.layers for t in layer.tensors)
    return MeasuredRun(
        kind=model.spec.kind,
        prefill=prefill.report(),
        decode=decode.report(),
        cache=_bytes_of(cache),
        kv_bytes_per_token=per_token // batch,
        states=tuple(cache.state_tensors()),
        counters=(prefill, decode),
    )


def _bytes_of(cache: Cache) -> MeasuredCache:
    return MeasuredCache(
        kv_bytes=tensor_bytes(cache.tensors()),
        cross_kv_bytes=tensor_bytes(t for layer in cache.cross for t in layer.tensors),
        state_bytes=tensor_bytes(cache.state_tensors()),
    )


def measure_prediction(module: MultiTokenPrediction, workload: Workload) -> MeasuredRun:
    """Run prediction modules (on meta) over `workload`, the model itself not, and measure them.

    Each reads as many hidden states and next tokens as the workload has tokens.
    """
    prefill, decode, seq_len = reference_counter(), reference_counter(), workload.seq_len
    cache, single, shorter = (module.new_cache() for _ in range(3))
    _predict(module, workload.batch_size, seq_len, cache, prefill)
    _predict(module, workload.batch_size, 1, single, reference_counter())
    if seq_len > 1:
        _predict(module, workload.batch_size, seq_len - 1, shorter, reference_counter())
    _predict(module, workload.batch_size, 1, shorter, decode, absorbed=True)
    return MeasuredRun(
        kind="decoder",
        prefill=prefill.report(),
        decode=decode.report(),
        cache=_bytes_of(cache),
        kv_bytes_per_token=tensor_bytes(single.tensors()) // workload.batch_size,
    )


def _predict(
    module: MultiTokenPrediction,
    batch: int,
    length: int,
    cache: Cache,
    counter: FlopCounter,
    *,
    absorbed: bool = False,
) -> None:
    like = next(module.parameters())
    hidden_BSD = torch.empty(
        batch, length, module.main.spec.d_model, device="meta", dtype=like.dtype
    )
    tokens = torch.empty(batch, length + len(module.layers) - 1, device="meta", dtype=torch.long)
    with torch.no_grad(), counter.watching(module):
        module(hidden_BSD, tokens, cache=cache, absorbed=absorbed)


def measure_prefill(model: Model, workload: Workload) -> MeasuredFlops:
    """Run `model` (on meta) once over the whole workload."""
    counter = reference_counter()
    if model.spec.kind == "encoder":
        run_encoder(model, workload, counter)
    else:
        run_prefill(model, workload, workload.seq_len, counter)
    return counter.report()


def _input(model: Model, batch: int, length: int) -> Tensor:
    if model.spec.vocab_size is None:
        dtype = next(model.parameters()).dtype
        return torch.empty(batch, length, model.spec.d_model, device="meta", dtype=dtype)
    return torch.empty(batch, length, device="meta", dtype=torch.long)


def run_prefill(
    model: Model, workload: Workload, length: int, counter: FlopCounter
) -> tuple[Cache, Tensor | None]:
    """Read `length` tokens into a new cache (none: only the encoder runs), what runs being counted.

    Returns the cache, and what the encoder gave.
    """
    cache, batch = model.new_cache(), workload.batch_size
    with torch.no_grad(), counter.watching(model):
        memory = None
        if model.spec.has_encoder:
            source = _input(model, batch, workload.encoder_len)
            memory = counter.called(model, model.encode, source)
        if length or memory is not None:
            model(
                _input(model, batch, max(length, 0)),
                memory_BTD=memory,
                cache=cache,
                prefix_len=min(workload.prefix_len, length),
            )
    return cache, memory


def run_decode(model: Model, workload: Workload, counter: FlopCounter) -> None:
    """Run one more token, the last of the workload's, what runs being counted.

    The token continues a state, also where it is the only one that attention sees.
    """
    shorter, memory = run_prefill(model, workload, workload.seq_len - 1, reference_counter())
    if workload.seq_len == 1 and model.spec.recurrent != "none":
        one, _ = run_prefill(model, workload, 1, reference_counter())
        for empty, filled in zip(shorter.states, one.states, strict=True):
            empty.states = filled.states
    with torch.no_grad(), counter.watching(model):
        token = _input(model, workload.batch_size, 1)
        model(token, memory_BTD=memory, cache=shorter, absorbed=True)


def run_encoder(model: Model, workload: Workload, counter: FlopCounter) -> None:
    """Run a model that has no decoder, what runs being counted."""
    with torch.no_grad(), counter.watching(model):
        model(_input(model, workload.batch_size, workload.seq_len))
