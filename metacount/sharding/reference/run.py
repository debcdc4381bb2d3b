"""Measures the parts of a model in a fake world: what a rank holds of each, and what it sends."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from metacount.measure.torch_private import fake_tensors, is_fake, operator_name, unwatched
from metacount.modules.indexer import CHOOSING
from metacount.modules.model import Model
from metacount.modules.moe import Experts
from metacount.sharding.engine.keeping import Keeping
from metacount.sharding.engine.placing import apply_plan, end_step, shard_fully
from metacount.sharding.engine.ring import RingAttention, ring
from metacount.sharding.engine.styles import local_part
from metacount.sharding.engine.traffic import Seen, Traffic
from metacount.sharding.engine.world import World
from metacount.sharding.reference.parts import (
    in_memory,
    input_of,
    lent_to,
    tensors_with_roles,
    tie_again,
    units_of,
)
from metacount.sharding.result import Held, Job
from metacount.tensors import DTYPES, tensor_bytes
from metacount.training.attention import FusedAttention
from metacount.training.checkpointing import checkpointed
from metacount.training.ours import as_trained
from metacount.training.setup import Setup
from metacount.training.step import loss_of

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload
    from metacount.modules.model import Output


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What running a part once sent: in the forward, and in the backward where there was one."""

    forward: Counter[Seen]
    backward: Counter[Seen]
    kv_cache_bytes: int = 0
    state_bytes: int = 0  # that mixers keep, however many tokens there were
    activation_bytes: int = 0  # that the backward keeps of the forward
    recomputed_bytes: int = 0


def place(model: Model, styles: dict[str, str], world: World, job: Job) -> list[Held]:
    """Place a part, on meta or in memory, and say what this rank holds of it."""
    whole = {name: tuple(tensor.shape) for name, _, _, tensor in tensors_with_roles(model)}
    apply_plan(model, styles, world)
    tie_again(model)
    cut = [
        (
            name,
            role,
            tuple(local_part(tensor).shape),
            _active(owner, tensor),
            world.mesh.ep > 1 and isinstance(owner, Experts),
        )
        for name, role, owner, tensor in tensors_with_roles(model)
    ]
    indexers = (n for n, module in model.named_modules() if isinstance(module, CHOOSING))
    choosing = tuple(f"{name}." for name in indexers)
    if job.train:
        compute = None if job.stored == job.dtype else DTYPES[job.dtype]
        shard_fully(model, *units_of(model), world, compute, lent_to(model, compute))
    held = {name: local_part(tensor).numel() for name, _, _, tensor in tensors_with_roles(model)}
    return [
        Held(
            name=name,
            role=role,
            whole=whole[name],
            cut=shape,
            active=active,
            expert=expert,
            shard=held[name],
            trained=not name.startswith(choosing),
        )
        for name, role, shape, active, expert in cut
    ]


def _active(owner: nn.Module, tensor: Tensor) -> int:
    mine = local_part(tensor)
    if not isinstance(owner, Experts):
        return mine.numel()
    return mine[0].numel() * min(owner.top_k, mine.shape[0])


def train_once(model: Model, styles: dict[str, str], world: World, job: Job) -> Ran:
    """Run a part forward and backward on fake tensors."""
    mode = fake_tensors()
    with mode:
        in_memory(model)
    place(model, styles, world, job)
    traffic, keeping = Traffic(world.groups), Keeping(model)
    blocks: list[nn.Module] = [*model.last_stack.blocks]
    context = world.context if job.ring else None
    with mode, EvenChoice(), traffic, as_trained(model, job.attention), ring(context):
        with checkpointed(blocks, job.checkpointing, keeping, lambda: fused(job)):
            out = _trained(model, job, keeping)
            forward, kept = traffic.taken(), keeping.bytes()
            out.backward(torch.ones_like(out))
        backward = traffic.taken()
        end_step(model)
        recomputed = 0
        if blocks and job.checkpointing != "none":
            again = Keeping(model)
            held = _trained(model, job, again)
            recomputed = again.bytes()
            del held
    return Ran(
        forward=forward,
        backward=backward,
        activation_bytes=kept,
        recomputed_bytes=recomputed,
    )


def _trained(model: Model, job: Job, keeping: Keeping) -> Tensor:
    """Compute what a part gives of its input: hidden states, or the loss of the logits."""
    given = input_of(model, job.rows, job.length, job.dtype)
    with keeping.watching(), fused(job):
        out = result(model(given))
        if model.lm_head is None:
            return out
        targets = torch.zeros(given.shape[:2], dtype=torch.long)
        return loss_of(out, targets, Setup(attention=job.attention))


def fused(job: Job) -> FusedAttention | RingAttention:
    """Choose the mode in which attention runs by the kernel that the job names."""
    return RingAttention() if job.ring else FusedAttention(job.attention, set())


def serve_once(model: Model, styles: dict[str, str], world: World, job: Job) -> dict[str, Ran]:
    """Run a part over what it is given, and, where it has a cache, over one token more."""
    mode, found = fake_tensors(), {}
    with mode:
        in_memory(model.eval())
    place(model, styles, world, job)
    traffic = Traffic(world.groups)
    with mode, torch.no_grad(), EvenChoice(), traffic:
        for phase, n in job.passes.items():
            cache = model.new_cache() if job.decodes else None
            if phase == "token" and job.length > 1:
                model(input_of(model, job.rows, job.length - 1, job.dtype), cache=cache)
                traffic.taken()
            model(input_of(model, job.rows, n, job.dtype), cache=cache)
            found[phase] = Ran(
                forward=traffic.taken(),
                backward=Counter(),
                kv_cache_bytes=0 if cache is None else tensor_bytes(cache.tensors()),
                state_bytes=0 if cache is None else tensor_bytes(cache.state_tensors()),
            )
    return found


def result(out: Output) -> Tensor:
    """Return what a stage passes on, or the logits."""
    tensor: Tensor = out.hidden_BSD if out.logits_BSV is None else out.logits_BSV
    return tensor


class EvenChoice(Traffic):
    """Answers how many rows each expert gets, where no tensor has values: equally many."""

    def __init__(self) -> None:
        super().__init__({})

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run the operator, or answer it."""
        if DTensor in types:
            return NotImplemented
        asked = args[0] if operator_name(func) == "aten::bincount" else None
        if isinstance(asked, torch.Tensor) and is_fake(asked):
            rows, experts = asked.numel(), (kwargs or {}).get("minlength", args[-1])
            assert isinstance(experts, int)
            even = [rows * (i + 1) // experts - rows * i // experts for i in range(experts)]
            with unwatched():  # a tensor that has values
                return torch.tensor(even)
        return func(*args, **(kwargs or {}))
