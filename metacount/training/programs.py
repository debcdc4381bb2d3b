"""Models as programs that can be trained: our reference modules, and transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metacount.errors import InputError
from metacount.measure.ours import ReferenceBook
from metacount.measure.theirs import (
    ClassBook,
    ListQuestions,
    Ordinary,
    Roles,
    Runner,
    asked_module,
    quiet,
)
from metacount.measure.transformers_private import attention_way
from metacount.modules.attention import ScaledDotProduct, Visibility
from metacount.modules.block import Block
from metacount.modules.model import Model
from metacount.modules.moe import Experts
from metacount.modules.shared_block import SharedBlock
from metacount.spec import Workload
from metacount.training.model import outermost_layers
from metacount.training.setup import Setup
from metacount.training.step import Program

if TYPE_CHECKING:
    from collections.abc import Callable


def reference_program(
    model: Model,
    workload: Workload,
    setup: Setup,
    *,
    device: str = "meta",
) -> Program:
    """Make a training step of a reference module over a workload; its tokens are zeros off meta."""

    def tokens(length: int) -> Tensor:
        if model.spec.vocab_size is None:
            dtype = next(model.parameters()).dtype
            shape = (workload.batch_size, length, model.spec.d_model)
            return torch.zeros(shape, dtype=dtype, device=device)
        return torch.zeros(workload.batch_size, length, dtype=torch.long, device=device)

    given = tokens(workload.seq_len)
    inputs = (given, tokens(workload.encoder_len)) if model.spec.has_encoder else (given,)

    def run(ids: Tensor, source: Tensor | None = None) -> Tensor:
        memory = None if source is None else model.encode(source)
        out = model(ids, memory_BTD=memory, prefix_len=min(workload.prefix_len, workload.seq_len))
        values: Tensor = out.hidden_BSD if out.logits_BSV is None else out.logits_BSV
        return values

    return Program(
        model=model,
        inputs=inputs,
        run=run,
        targets=torch.zeros_like(given) if model.lm_head is not None else None,
        layers={name: m for name, m in model.named_modules() if isinstance(m, Block)},
        shared=tuple(name for name, m in model.named_modules() if isinstance(m, SharedBlock)),
        head=model.lm_head,
        book=ReferenceBook(),
        context=lambda: as_trained(model, setup.attention),
    )


@contextmanager
def as_trained(model: nn.Module, attention: str) -> Iterator[None]:
    """Set how attention runs inside, and spread tokens evenly over experts on meta; undo after."""
    changed: list[tuple[nn.Module, str]] = []
    for module in model.modules():
        if isinstance(module, Experts):
            vars(module)["rows"] = _even(module)
            changed.append((module, "rows"))
        elif isinstance(module, ScaledDotProduct) and attention != "eager":
            vars(module)["forward"] = _fused(module, attention)
            changed.append((module, "forward"))
    try:
        yield
    finally:
        for module, name in changed:
            del vars(module)[name]


def _even(experts: Experts) -> Callable[..., Tensor]:

    def rows(x_RD: Tensor, name: str, expert_R: Tensor, counts: list[int]) -> Tensor:
        each, rest = divmod(x_RD.shape[0], experts.n_experts)
        even = [each + (n < rest) for n in range(experts.n_experts)]
        return Experts.rows(experts, x_RD, name, expert_R, counts or even)

    return rows


def _fused(core: ScaledDotProduct, way: str) -> Callable[..., Tensor]:
    if core.softcap is not None or core.sinks is not None:
        what = "caps its scores" if core.sinks is None else "has sinks"
        raise InputError(f"attention {way} is not for a model that {what}: choose eager")

    def forward(
        q_BHSK: Tensor, k_BGTK: Tensor, v_BGTU: Tensor, sees: Visibility, bias: Tensor | None = None
    ) -> Tensor:
        plain = bias is None and (sees.window is None or way == "flash") and not sees.chunked
        masked = not plain or sees.kind == "prefix"
        if masked and way == "flash":
            raise InputError(
                "attention flash is for causal and windowed attention without a bias "
                "on the scores: choose sdpa or eager"
            )
        mask = _mask(sees, bias, q_BHSK) if masked else None
        return F.scaled_dot_product_attention(
            q_BHSK,
            k_BGTK,
            v_BGTU,
            attn_mask=mask,
            is_causal=mask is None and sees.kind == "causal",
            scale=core.scale,
            enable_gqa=q_BHSK.shape[1] != k_BGTK.shape[1],
        )

    return forward


def _mask(sees: Visibility, bias: Tensor | None, q: Tensor) -> Tensor:
    keep = sees.keep(q.device)
    if bias is None:
        return keep
    hidden = bias.masked_fill(~keep, -torch.inf).to(q.dtype)
    return hidden if hidden.dim() == 4 else hidden[None]


# Of our call of the kernel, among transformers' ways of attention; one with "flash" in its name
# would be looked for among its own.
NAME = "metacount_kernel"
LAYER = "GradientCheckpointingLayer"  # the class of what transformers itself checkpoints
NO_CACHE = "a training step keeps no cache"


def foreign_program(model: nn.Module, workload: Workload, setup: Setup) -> Program:
    """Make a training step of transformers' `model` (on meta) over a workload."""
    roles = Roles(model)
    book = ClassBook(roles, Ordinary(workload.seq_len - 1))
    runner = Runner(model, workload, roles, fold=False)
    runner.no_cache = NO_CACHE
    given = runner.inputs(workload.seq_len)
    names = [name for name, value in given.items() if isinstance(value, Tensor)]
    plain = {name: value for name, value in given.items() if name not in names}

    def run(*tensors: Tensor) -> object:
        with quiet():
            out = model(**dict(zip(names, tensors, strict=True)), **plain)
        logits = getattr(out, "logits", None)
        return out[0] if logits is None else logits

    main = given.get("decoder_input_ids", given.get("input_ids"))
    found = asked_module(model, "get_output_embeddings")
    head = found if isinstance(found, nn.Module) else None
    return Program(
        model=model,
        inputs=tuple(given[name] for name in names),
        run=run,
        targets=None if head is None or main is None else torch.empty_like(main),
        layers=layers_of(model),
        head=head,
        book=book,
        context=lambda: attending(model, setup.attention),
        modes=lambda: _modes(book.ordinary),
    )


@contextmanager
def _modes(ordinary: Ordinary) -> Iterator[None]:
    with torch.device("meta"), ListQuestions(ordinary):
        yield


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Find the layers that transformers itself checkpoints, else children of outermost lists."""
    counts: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{layer}.") for layer in counts)
        if not inside and any(kind.__name__ == LAYER for kind in type(module).__mro__):
            counts[path] = module
    return counts or outermost_layers(model)


@contextmanager
def attending(model: Any, attention: str) -> Iterator[None]:
    """Run attention inside in a way of transformers'; set the way from before again after."""
    if attention == "eager":
        yield
        return
    if attention == "flash":
        _register()
    before = attention_way(model.config)
    try:
        with quiet():
            model.set_attn_implementation(NAME if attention == "flash" else attention)
    except ValueError as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"attention {attention}: {reason}; choose eager") from None
    try:
        yield
    finally:
        with quiet():
            model.set_attn_implementation(before)


def _register() -> None:
    """Make our call of the flash kernel one of transformers' ways of attention, without a mask."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _flash)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def _flash(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """Compute attention as transformers asks for it; windows are the kernel's own business."""
    has = {name for name in ("softcap", "s_aux", "position_bias") if more.get(name) is not None}
    if has or attention_mask is not None:
        what = ", ".join(sorted(has)) or "a mask of its own"
        raise InputError(f"attention flash takes no {what}: choose sdpa or eager")
    causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2), None
