"""Our reference modules in parts that a mesh is given: the two ends, and blocks of each kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metacount.measure.ours.params import owned
from metacount.measure.ours.roles import role_of
from metacount.measure.torch_private import parameters_of, put_tensor, tensors_of
from metacount.modules.block import Block
from metacount.modules.build import build
from metacount.modules.model import Model, Stack
from metacount.modules.moe import Experts
from metacount.spec import ModelSpec
from metacount.spec.position import Sinusoidal
from metacount.tensors import DTYPES


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a model that is measured once: the layers that are alike, or an end."""

    name: str
    layers: tuple[int, ...] = ()
    first: bool = False
    last: bool = False

    def copies(self, layers: range, *, first: bool, last: bool) -> int:
        """Count how many of this part a stage has."""
        if self.layers:
            return sum(i in layers for i in self.layers)
        return int((first or not self.first) and (last or not self.last))


class Whole:
    """A model, on meta if nothing else is said, and the parts that it is made of."""

    def __init__(
        self, spec: ModelSpec, dtype: str, *, device: str = "meta", seed: int | None = None
    ) -> None:
        model = build(spec, device=device, dtype=dtype, seed=seed).train()
        self._blocks = model.last_stack.blocks
        model.last_stack.layers = nn.ModuleList()
        self._ends = model
        self.spec = spec

    def parts(self, stages: int) -> list[Part]:
        """List the embedding, a part for each kind of block with the layers of
        that kind, and the head.

        Tied ends are one part as long as they are in one stage.
        """
        kinds: dict[object, list[int]] = {}
        for i, block in enumerate(self._blocks):
            shapes = tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
            modules = tuple((name, type(each)) for name, each in block.named_modules())
            kinds.setdefault((block.kind, shapes, modules), []).append(i)
        several = len(kinds) > 1
        blocks = [
            Part(name=_named(self._blocks[found[0]], several), layers=tuple(found))
            for found in kinds.values()
        ]
        if self.spec.head is not None and self.spec.head.tied and stages == 1:
            return [*blocks, Part(name="embedding and head", first=True, last=True)]
        return [Part(name="embedding", first=True), *blocks, Part(name="head", last=True)]

    def piece(self, layers: Sequence[int], *, first: bool, last: bool) -> Model:
        """Make a new module of some of the layers and of the ends."""
        model = copy.deepcopy(self._ends)
        model.last_stack.layers = nn.ModuleList(copy.deepcopy(self._blocks[i]) for i in layers)
        return without_ends(model, first=first, last=last)

    def part(self, part: Part) -> Model:
        """Make a new module of a part: of layers that are alike, one."""
        found = self.piece(part.layers[:1], first=part.first, last=part.last)
        stack = found.last_stack
        for block in stack.blocks:
            if block.beside:
                vars(block)["forward"] = _added_at_once(block)
            if block.shares:
                vars(stack)["_shared"] = lambda _: (stack.shared_blocks or [None])[0]
        if stack.shared_blocks is not None and not stack.blocks:
            stack.register_forward_hook(_with_gradients)
        return found


def _with_gradients(stack: nn.Module, args: object, out: Tensor) -> Tensor:
    """Add zero to a stack's output, so that shared blocks get gradients
    as layers elsewhere give them.

    A sum of values times zero keeps nothing for its backward.
    """
    assert isinstance(stack, Stack) and stack.shared_blocks is not None
    return out + 0 * torch.stack([p.sum() for p in stack.shared_blocks.parameters()]).sum()


def sharing(model: Model) -> list[nn.Module]:
    """List the modules of blocks that layers share,
    if the model lacks the first end, which holds them.
    """
    shared = model.last_stack.shared_blocks
    return [] if shared is None or model.embed_tokens is not None else [*shared.modules()]


def lent_to(model: Model, compute: torch.dtype | None) -> set[nn.Parameter] | None:
    """Give shared blocks their parameters as gathered elsewhere, and return these;
    None where there are none.
    """
    found = set()
    for owner in sharing(model):
        for name, tensor in parameters_of(owner).items():
            lent = nn.Parameter(tensor.detach().to(compute or tensor.dtype))
            put_tensor(owner, name, lent)
            found.add(lent)
    return found or None


def _added_at_once(block: Block) -> Callable[..., tuple[Tensor, None]]:
    """Make a forward that adds experts' output at once:
    the next layer, which would do so, is not there.
    """
    forward: Callable[..., Tensor | tuple[Tensor, Tensor]] = block.forward

    def run(*args: object, **how: object) -> tuple[Tensor, None]:
        x_BSD, beside_BSD = forward(*args, **how)  # of such a block two
        return x_BSD + beside_BSD, None

    return run


def _named(block: Block, several: bool) -> str:
    if not several:
        return "block"
    said = ["MoE block" if "moe=True" in block.kind else "dense block"]
    if block.window is not None:
        said.append(f"window {block.window}")
    if "rope=False" in block.kind:
        said.append("no rope")
    return ", ".join(said)


def without_ends(model: Model, *, first: bool, last: bool) -> Model:
    """Turn the model into a stage, without the ends that are not its own.

    It is run as the model is; a stage that is not the first takes hidden states.
    """
    stack = model.last_stack
    if not first:
        model.embed_tokens = model.embed_types = None
        stack.embed_positions = stack.embed_queries = stack.embed_norm = stack.embed_proj = None
        if not any(block.shares for block in stack.blocks):
            stack.shared_blocks = None
        if isinstance(model.spec.positions, Sinusoidal):
            stack.__dict__["_add_positions"] = lambda x_BSD, positions: x_BSD
    if not last:
        model.lm_head = model.head_transform = model.pooler = None
        stack.norm = None
    return model


def in_memory(model: Model) -> Model:
    """Replace the tensors of a model on meta by new ones, of the mode that is on.

    No token can choose without values: none chooses a zero expert, as on meta.
    """
    made: dict[int, Tensor] = {}
    for owner in model.modules():
        if isinstance(owner, Experts):
            owner.n_zero = 0
        for name, tensor in tensors_of(owner).items():
            if id(tensor) not in made:
                new = torch.empty(tensor.shape, dtype=tensor.dtype)
                made[id(tensor)] = nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new
            put_tensor(owner, name, made[id(tensor)])
    return model


def units_of(model: Model) -> tuple[list[nn.Module | list[nn.Module]], list[Experts]]:
    """List what FSDP2 gathers at once, and the experts, which it spreads over other ranks.

    Each block is a unit; the embedding is one, and the last norm with the head, unless they are
    tied: then they stay together with what else is left.
    """
    stack = model.last_stack
    experts = [module for module in model.modules() if isinstance(module, Experts)]
    units: list[nn.Module | list[nn.Module]] = [*stack.blocks]
    tied = (
        model.lm_head is not None
        and model.embed_tokens is not None
        and model.lm_head.weight is model.embed_tokens.weight
    )
    if not tied:
        if model.embed_tokens is not None:
            units.append(model.embed_tokens)
        ends = [stack.norm, model.head_transform, model.lm_head]
        if model.lm_head is not None:
            units.append([end for end in ends if end is not None])
    return units, experts


def tie_again(model: Model) -> None:
    """Make the head's weight the table again, where the spec ties them and both are here."""
    head, last, table = model.spec.head, model.lm_head, model.embed_tokens
    if head is not None and head.tied and last is not None and table is not None:
        last.weight = table.weight


def input_of(model: Model, batch: int, length: int, dtype: str) -> Tensor:
    """Make what a stage reads: tokens,
    or hidden states whose gradient goes back to the stage before.
    """
    if model.embed_tokens is not None:
        return torch.zeros(batch, length, dtype=torch.long)
    shape = (batch, length, model.spec.d_model)
    return torch.empty(shape, dtype=DTYPES[dtype], requires_grad=True)


def tensors_with_roles(model: Model) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    """Yield name, role, owner and tensor of each distinct parameter,
    without those that are lent.
    """
    names = {id(module): name for name, module in model.named_modules()}
    lent = {id(module) for module in sharing(model)}
    for path, name, tensor in owned(model):
        if any(id(module) in lent for module in path):
            continue
        owner = names[id(path[-1])]
        yield f"{owner}.{name}" if owner else name, role_of(path) or "other", path[-1], tensor
