"""How a model is set up for a step: what is trained, its kernel, which layers run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from metacount.errors import InputError, nearest, shown
from metacount.measure.operators import multiplies
from metacount.measure.torch_private import (
    DispatchMode,
    cpu_fuses,
    is_fake,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)
from metacount.tensors import FunctionMode
from metacount.training.setup import ALL_LINEAR, Setup

if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.measure.torch_private import OpOverload


class Adapted(nn.Module):
    """A frozen linear layer with an adapter: W·x + B·(A·x).

    Hu et al. 2021, arXiv:2106.09685, eq. 3; its scale α/r multiplies B, so that no product of its
    own is kept. A is [rank, in], B [out, rank], in the layer's type. Its sizes are the layer's, for
    modules that ask for them.
    """

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        self.lora_a = nn.Parameter(base.weight.new_zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))

    @property
    def weight(self) -> Tensor:
        """The layer's own, [out, in]: T5 asks for its type."""
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        """Compute W·x + B·(A·x): [..., in] -> [..., out]."""
        low = nn.functional.linear(x, self.lora_a)
        out: Tensor = self.base(x) + nn.functional.linear(low, self.lora_b)
        return out


@contextmanager
def trainable(model: nn.Module, setup: Setup, head: nn.Module | None) -> Iterator[None]:
    """Let only parameters that a setup trains require gradients inside; undo that afterwards."""
    before = {id(p): (p, p.requires_grad) for p in model.parameters()}
    changed: list[tuple[nn.Module, str, nn.Module]] = []
    try:
        if setup.lora_rank is not None:
            for p, _ in before.values():
                p.requires_grad_(False)
            changed += _adapt(model, setup, head)
        _freeze(model, setup.freeze)
        yield
    finally:
        for owner, name, base in changed:
            setattr(owner, name, base)
        for p, required in before.values():
            p.requires_grad_(required)


def _adapt(
    model: nn.Module, setup: Setup, head: nn.Module | None
) -> list[tuple[nn.Module, str, nn.Module]]:
    assert setup.lora_rank is not None
    linear = [
        (owner, name, child)
        for owner in list(model.modules())
        for name, child in owner.named_children()
        if isinstance(child, nn.Linear) and child is not head
    ]
    known = {name for _, name, _ in linear}
    missing = [t for t in setup.lora_targets if t not in known and t != ALL_LINEAR]
    if missing or not linear:
        names = ", ".join(sorted(known)[:12]) or "it has none"
        raise InputError(
            f"lora_targets: no linear layer is called {shown(missing[0] if missing else 'so')}; "
            f"{nearest(missing[0], known, '') if missing else ''} {names}, or {ALL_LINEAR}".replace(
                "  ", " "
            )
        )
    chosen = [
        pair for pair in linear if ALL_LINEAR in setup.lora_targets or pair[1] in setup.lora_targets
    ]
    made: dict[int, Adapted] = {}
    for owner, name, base in chosen:
        if id(base) not in made:
            made[id(base)] = Adapted(base, setup.lora_rank)
        setattr(owner, name, made[id(base)])
    return list(chosen)


def _freeze(model: nn.Module, names: tuple[str, ...]) -> None:
    own = [path.split(".") for path, _ in model.named_parameters(remove_duplicate=False)]
    # what has parameters, and they themselves
    paths = {".".join(parts[: n + 1]) for parts in own for n in range(len(parts))}
    for name in names:
        frozen = [p for p in paths if p == name or p.endswith(f".{name}")]
        if not frozen:
            close = nearest(
                name, {part for parts in own for part in parts}, "`metacount tree` shows them"
            )
            problem = f"nothing of the model with parameters is called {shown(name)}"
            raise InputError(f"freeze: {problem}; {close}")
        for path, parameter in model.named_parameters(remove_duplicate=False):
            if any(path == start or path.startswith(f"{start}.") for start in frozen):
                parameter.requires_grad_(False)


aten = torch.ops.aten
WIDEST = 256  # of a head that CUDA's kernel takes
WRITTEN_OUT = (
    "attention sdpa: torch's CPU has no fused kernel for some calls (a bias that is trained, say) "
    "and writes their products out; a CUDA device may have one that keeps less"
)


class FusedAttention(FunctionMode):
    """Inside, `scaled_dot_product_attention` of tensors on meta runs by one kernel.

    On meta torch writes it out, which no device does that has a kernel for it.
    """

    def __init__(self, way: str, notes: set[str]) -> None:
        """Choose the kernel by `way`; `notes` takes what is to be said of the kernel's calls."""
        super().__init__()
        self._said = notes
        kernels: dict[str, Callable[..., Tensor]] = {
            "sdpa": partial(as_on_cpu, notes),
            "flash": by_flash,
        }
        self._run = kernels.get(way)

    def run_function(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the kernel, or let torch."""
        if func is F.scaled_dot_product_attention and self._run is not None:
            q = args[0] if args else kwargs["query"]
            # on a fake CPU torch takes the kernel that its CPU would
            flash = self._run is by_flash
            if isinstance(q, Tensor) and (q.is_meta or (flash and is_fake(q))):
                width = q.shape[-1]
                if flash and width % 8:
                    self._said.add(
                        f"CUDA pads heads of {width} to a multiple of 8: no padding is counted"
                    )
                return self._run(*args, **kwargs)
        return func(*args, **kwargs)


def as_on_cpu(
    notes: set[str],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **how: Any,
) -> Tensor:
    """Run attention as torch's CPU does: by its fused kernel, or the products where it has none."""
    plain = query.dim() == 4 and not dropout_p
    if not plain or not cpu_fuses(query, key, value, attn_mask, causal=is_causal):
        notes.add(WRITTEN_OUT)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **how
        )
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen, hidden = (
            torch.scalar_tensor(x, dtype=query.dtype, device="meta") for x in (0.0, -torch.inf)
        )
        attn_mask = torch.where(attn_mask, seen, hidden)
    out: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=how.get("scale")
    )[0]
    return out


def by_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run CUDA's flash attention, which takes no mask; pad values with zeros to the keys' width."""
    if attn_mask is not None or dropout_p:
        raise InputError("attention flash takes no mask and no dropout here: choose sdpa or eager")
    if query.element_size() != 2 or query.shape[-1] > WIDEST:
        raise InputError(
            f"attention flash is for 16-bit types and heads of at most {WIDEST}: got "
            f"{query.dtype} and {query.shape[-1]}; choose sdpa or eager"
        )
    width = value.shape[-1]
    if width != query.shape[-1]:
        value = F.pad(value, (0, query.shape[-1] - width))
    out: Tensor = aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, is_causal, False, scale=scale
    )[0]
    return out[..., :width] if width != query.shape[-1] else out


class Watch:
    """Is told what checkpointing keeps, and when it runs a layer again; nobody wants to know."""

    def inputs(self, tensors: list[Tensor]) -> None:
        """Note the inputs of a layer, which are kept."""

    def result(self, tensors: list[Tensor]) -> None:
        """Note the results of an operator, which are kept."""

    def recomputing(self, layer: nn.Module) -> AbstractContextManager[None]:
        """Mark what runs inside as a layer's forward run again."""
        return nullcontext()


class _Results(DispatchMode):
    """Says what the operators gave whose results selective checkpointing keeps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the operator, then say what it gave."""
        out = func(*args, **kwargs)
        if multiplies(func):
            self._watch.result([leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)])
        return out


def _keeps(
    _: SelectiveCheckpointContext, func: OpOverload, *args: object, **kwargs: object
) -> bool:
    """Choose the results that selective checkpointing keeps: those of matrix products."""
    return multiplies(func)


def outermost_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of each outermost `ModuleList`, by name."""
    children: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{layer}.") for layer in children)
        if isinstance(module, nn.ModuleList) and not inside:
            children.pop(path, None)  # a list has no forward that could be run again
            children |= {
                f"{path}.{n}" if path else n: child for n, child in module.named_children()
            }
    return children


Modes = Callable[[], AbstractContextManager[None]]


@contextmanager
def checkpointed(layers: list[nn.Module], way: str, watch: Watch, modes: Modes) -> Iterator[None]:
    """Make layers keep what `way` (none, selective, full) says and recompute the rest; undo after.

    `modes` are those that a forward runs in: the backward, which runs it again, has none.
    """
    if way == "none":
        yield
        return
    before = {id(layer): vars(layer).get("forward") for layer in layers}
    for layer in layers:
        vars(layer)["forward"] = _checkpointed(layer, way == "selective", watch, modes)
    try:
        yield
    finally:
        for layer in layers:
            own = before[id(layer)]
            if own is None:
                del vars(layer)["forward"]
            else:
                vars(layer)["forward"] = own


def _checkpointed(
    layer: nn.Module, selective: bool, watch: Watch, modes: Modes
) -> Callable[..., object]:
    forward = layer.forward

    def contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        if not selective:
            return nullcontext(), _all(watch.recomputing(layer), modes())
        first, again = create_selective_checkpoint_contexts(_keeps)
        asked = () if type(watch) is Watch else (_Results(watch),)
        return _all(first, *asked), _all(watch.recomputing(layer), modes(), again)

    def run(*args: object, **kwargs: object) -> object:
        leaves, shape = tree_flatten((args, kwargs))
        watch.inputs([leaf for leaf in leaves if isinstance(leaf, Tensor)])

        def again(*given: object) -> object:
            plain, named = tree_unflatten(given, shape)
            return forward(*plain, **named)

        # our models draw nothing at random, and on meta nobody does: no generator has a state
        return checkpoint(
            again, *leaves, use_reentrant=False, preserve_rng_state=False, context_fn=contexts
        )

    return run


@contextmanager
def _all(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
