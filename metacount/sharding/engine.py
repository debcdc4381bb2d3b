"""Places any module on a mesh with torch.distributed, runs it there, and records what it did.

A world of ranks is a fake one of any size in this process, or the real one that a process is in. A
fake process group does nothing when it is asked to communicate; everything else of
torch.distributed runs as it would on that rank. The words of a plan's styles are those of
transformers' plans.
"""

from __future__ import annotations

import gc
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import distribute_tensor as cut
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from metacount.errors import InputError, nearest, shown
from metacount.measure.torch_private import (
    DispatchMode,
    exchanged_rows,
    fake_store,
    group_of,
    in_place_of,
    is_fake,
    only_own_pieces,
    operator_name,
    packed_in,
    parameters_of,
    put_tensor,
    waited,
)
from metacount.modules.norm import LayerNorm, RMSNorm
from metacount.sharding.mesh import Mesh, Place, spread_axis
from metacount.tensors import FunctionMode, tensor_bytes
from metacount.training.model import by_flash
from metacount.training.optimizers import ADAM8BIT, kept_states, made, uncompiled
from metacount.training.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.measure.torch_private import OpOverload


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's view of a mesh: torch's meshes, each of the groups that the rank is in."""

    mesh: Mesh
    place: Place
    zero: int
    stages: DeviceMesh  # pp
    dense: DeviceMesh  # replicate, shard, tp
    experts: DeviceMesh  # replicate, shard, ep
    tp: DeviceMesh  # the ranks that hold parts of the same matrices
    ep: DeviceMesh  # those that hold different experts
    shares: DeviceMesh  # those that hold the same; without ZeRO, each of them all of it
    expert_shares: DeviceMesh  # those that hold the same experts
    context: DeviceMesh | None  # cp

    @property
    def groups(self) -> dict[str, str]:
        """What each process group of this rank is for, by the name torch gives it."""
        purpose: dict[str, str] = {}
        for mesh, of_copies in ((self.experts, "copies"), (self.dense, "dp")):
            for name in mesh.mesh_dim_names or ():
                group = str(mesh.get_group(name).group_name)
                purpose[group] = of_copies if name in ("replicate", "shard") else name
        for line, name in ((self.stages, "pp"), (self.context, "cp")):
            if line is not None:
                purpose[str(line.get_group().group_name)] = name
        return purpose


@contextmanager
def fake_world(mesh: Mesh, rank: int, zero: int) -> Iterator[World]:
    """Make a fake world of `mesh.world` ranks as `rank` sees it, gone after the block."""
    if dist.is_initialized():
        raise InputError(
            "this process is in a process group already, and can be in one only; "
            "shard in a process of its own"
        )
    hook = sys.excepthook  # torch's own puts the rank before each line of a traceback
    drawn = random.getstate()  # torch numbers fake collectives by Python's generator
    dist.init_process_group("fake", rank=rank, world_size=mesh.world, store=fake_store())
    try:
        with only_own_pieces():
            yield world_of(mesh, rank, zero)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
        random.setstate(drawn)
        # FSDP2's modules refer to themselves: a piece of a tensor for each rank would stay
        gc.collect()


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Collect only garbage that is made in the block, not torch's million objects."""
    if gc.get_freeze_count():  # somebody has done so: thawing is theirs too
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def world_of(mesh: Mesh, rank: int, zero: int) -> World:
    """Make the meshes of a rank in the process group that is there, fake or real.

    Those of torch are of the rank's own stage: every copy of a mesh that torch makes, several for
    each parameter, has a list of all the ranks in it.
    """
    stage, within = divmod(rank, mesh.stage_ranks)
    stages = torch.arange(mesh.world).view(mesh.pp, mesh.stage_ranks)
    dense, experts = (
        device_mesh(
            stages[stage].view(*((1, copies) if zero else (copies, 1)), parts),
            rank,
            ("replicate", "shard", name),
        )
        for copies, parts, name in ((mesh.shard, mesh.tp, "tp"), (mesh.expert_shard, mesh.ep, "ep"))
    )
    line, context = device_mesh(stages[:, within], rank, ("pp",)), None
    if mesh.cp > 1:
        sequences = torch.arange(mesh.world).view(-1, mesh.cp, mesh.tp)
        ((i, _, tensor),) = (sequences == rank).nonzero().tolist()
        context = device_mesh(sequences[i, :, tensor], rank, ("cp",))
    shared = "shard" if zero else ("replicate", "shard")
    return World(
        mesh=mesh,
        place=mesh.place(rank),
        zero=zero,
        stages=line,
        dense=dense,
        experts=experts,
        tp=dense["tp"],
        ep=experts["ep"],
        shares=dense[shared],
        expert_shares=experts[shared],
        context=context,
    )


def device_mesh(ranks: torch.Tensor, rank: int, names: tuple[str, ...]) -> DeviceMesh:
    """Make a mesh with only the groups of this rank: a large mesh has many thousands."""
    place = [int(i) for i in (ranks == rank).nonzero()[0]]
    groups = []
    for axis in range(len(names)):
        others = tuple(slice(None) if i == axis else at for i, at in enumerate(place))
        groups.append(dist.new_group(ranks[others].tolist(), use_local_synchronization=True))
    group = groups if len(groups) > 1 else groups[0]
    return DeviceMesh.from_group(group, "cpu", mesh=ranks, mesh_dim_names=names)


Style = Callable[[nn.Module, DeviceMesh, nn.Module], None]


def sum_gradient(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return `x` itself, whose gradient is the sum of the gradients of all ranks."""
    shared = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    return shared.to_local(grad_placements=[Partial()])


def sum_output(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Sum what all ranks have."""
    parts = DTensor.from_local(x, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local()


def place(module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    """Cut one parameter of a module."""
    parameter = parameters_of(module)[name]
    tensor = cut(parameter.detach(), mesh, [placement], src_data_rank=None)
    put_tensor(module, name, nn.Parameter(tensor, requires_grad=parameter.requires_grad))


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return waited(tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def local(module: nn.Module) -> dict[str, Tensor]:
    """Return this rank's part of each parameter that a module itself holds."""
    return {
        name: tensor.to_local() if isinstance(tensor, DTensor) else tensor
        for name, tensor in parameters_of(module).items()
    }


def _of_torch(style: ParallelStyle) -> Style:
    def apply(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
        parallelize_module(module, mesh, style, src_data_rank=None)

    return apply


def _by_rows(style: RowwiseParallel) -> Style:
    """Cut a module by rows; torch takes all parts of its input to be equal."""

    def apply(module: Any, mesh: DeviceMesh, parent: nn.Module) -> None:
        def tell(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            x = args[0]
            shape = torch.Size((*x.shape[:-1], module.in_features))
            stride = torch.empty(shape, device="meta").stride()
            how: dict[str, Any] = {"run_check": False, "shape": shape, "stride": stride}
            return (DTensor.from_local(x, mesh, [Shard(-1)], **how),)

        module.register_forward_pre_hook(tell)
        parallelize_module(module, mesh, style, src_data_rank=None)

    return apply


def _shared_input(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Share one input among a module's parts:
    the gradients of it are summed once, not for each part.

    A mixture's router and experts each do as they are told; nothing is done to it.
    """
    children = dict(module.named_children())
    if "experts" in children or not any(isinstance(c, nn.Linear) for c in children.values()):
        return

    def share(_: nn.Module, args: tuple[Tensor, *tuple[object, ...]]) -> tuple[object, ...]:
        return DTensor.from_local(args[0], mesh, [Replicate()], run_check=False), *args[1:]

    module.register_forward_pre_hook(share)


def _gathered_input(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Gather the tokens that a branch reads; what it sees is told in whole sequences."""

    def gather(_: nn.Module, args: tuple[Any, ...]) -> tuple[object, ...]:
        own = DTensor.from_local(args[0], mesh, [Shard(1)], run_check=False)
        n = own.shape[1]
        sees = (replace(each, n_queries=n, n_keys=n) for each in args[1:])
        return own.redistribute(placements=[Replicate()]), *sees

    module.register_forward_pre_hook(gather)


def sum_norm_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Sum the gradients of norms of the stream, of which each rank has its own tokens."""
    inside = re.compile(r"(^|\.)(self_attn|mlp)\.")
    for name, module in model.named_modules():
        if isinstance(module, LayerNorm | RMSNorm) and not inside.search(name):
            _shared_weights(module, mesh, module)


def run_with(module: nn.Module, tensors: Callable[[], dict[str, Tensor]]) -> None:
    """Let a module's forward run with other tensors in the place of its parameters."""
    forward = module.forward

    def run(*args: object, **kwargs: object) -> object:
        with in_place_of(module, tensors()):
            return forward(*args, **kwargs)

    module.forward = run


def _shared_weights(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Sum the gradients of a whole module that each rank uses for its own heads."""
    run_with(
        module, lambda: {name: sum_gradient(p, mesh) for name, p in parameters_of(module).items()}
    )


def _local_weights(module: nn.Module, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Cut a module's parameters, one value for each head, with the heads."""
    for name in parameters_of(module):
        place(module, name, mesh, Shard(0))
    run_with(module, lambda: local(module))


def _latent(module: nn.Module, mesh: DeviceMesh, parent: Any) -> None:
    """Sum the gradient of MLA's rotated key, which goes uncut to each rank's heads."""

    def hook(_: nn.Module, args: object, out: Tensor) -> Tensor:
        latent, key = out.split((parent.rank, parent.rope), dim=-1)
        return torch.cat((latent, sum_gradient(key, mesh)), dim=-1)

    module.register_forward_hook(hook)


def _local_heads(module: Any, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Let a module make this rank's own heads of what its projections give."""
    module.n_heads //= mesh.size()


def _experts_cut(module: Any, mesh: DeviceMesh, parent: nn.Module) -> None:
    """Put a part of every matrix of every expert on each rank; the partial outputs are summed."""
    up, down = module.up_name, "down_proj"
    column = packed_in(1, 2) if module.gated else Shard(1)
    place(module, up, mesh, column)
    place(module, down, mesh, Shard(2))
    run_with(module, lambda: local(module))
    forward = module.forward

    def run(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        out = forward(sum_gradient(x, mesh), chosen, sum_gradient(weights, mesh))
        return sum_output(out, mesh)

    module.forward = run


STYLES: dict[str, Style] = {
    "colwise": _of_torch(ColwiseParallel()),
    "colwise_gather_output": _of_torch(ColwiseParallel(output_layouts=Replicate())),
    "rowwise": _by_rows(RowwiseParallel()),
    "embedding_rowwise": _of_torch(RowwiseParallel(input_layouts=Replicate())),
    "shared_input": _shared_input,
    "embedding_rowwise_spread": _of_torch(
        RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    ),
    "rowwise_spread": _by_rows(RowwiseParallel(output_layouts=Shard(1))),  # each its own tokens
    "gathered_input": _gathered_input,
    "colwise_logits": _of_torch(ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)),
    "colwise_logits_of_spread": _of_torch(
        ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    ),
    "colwise_of_spread": _of_torch(
        ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    ),
    "replicated_with_grad_allreduce": _shared_weights,
    "local_heads": _local_heads,
    "local_params": _local_weights,
    "mla_kv_a_proj": _latent,
    "moe_tp_experts": _experts_cut,
    "replicate": lambda module, mesh, parent: None,
}


class _Scaled(torch.autograd.Function):
    """The tensor itself, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def spread_experts(module: Any, world: World) -> None:
    """Put n_experts / ep experts on each rank, and let each token go where its experts are.

    `module` is called with rows [N, D], the experts of each row [N, k] and their weights [N, k].
    Ranks of one `tp` group hold the same rows: each sends its part of them, and what comes back is
    gathered. Rows without values (a fake world's) go to all alike, and as many come. A row that
    chose a zero expert, whose number is above all others, stays where it is.
    """
    ep, tp = world.ep, world.tp
    # Every expert sees the rows of all ranks of its `ep` group, which hold several parts of the
    # batch. FSDP2 averages over the copies of an expert, and the mean over the batch is wanted.
    factor = world.mesh.expert_shard / world.mesh.shard
    for name in parameters_of(module):
        place(module, name, ep, Shard(0))
    module.n_experts //= ep.size()
    forward, scaled = module.forward, cast("Callable[[Tensor, float], Tensor]", _Scaled.apply)

    def run(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        n_rows = len(x)
        if tp.size() > 1:
            x, chosen, weights = (_own_rows(t, tp) for t in (x, chosen, weights))
        expert_R, order = chosen.flatten().sort(stable=True)
        weight_R1 = weights.flatten()[order].unsqueeze(-1).to(x.dtype)
        row_R = order // chosen.shape[-1]
        out_RD = x[row_R] * weight_R1 if module.weigh_input else x[row_R]
        staying_RD = out_RD[:0]
        if module.n_zero:
            n_sent = int((expert_R < module.n_experts * ep.size()).sum())
            expert_R, staying_RD, out_RD = expert_R[:n_sent], out_RD[n_sent:], out_RD[:n_sent]
        there, back, local_R = _exchanged(expert_R, module.n_experts, ep)
        group = ep.get_group()
        rows = exchanged_rows(out_RD, there, back, group)
        own = {name: scaled(p, factor) for name, p in local(module).items()}
        with in_place_of(module, own):
            ones = torch.ones_like(local_R, dtype=rows.dtype).unsqueeze(-1)
            y = forward(rows, local_R.unsqueeze(-1), ones)
        y = exchanged_rows(y, back, there, group)
        y = torch.cat((y, staying_RD)) if len(staying_RD) else y
        y = y if module.weigh_input else y * weight_R1
        y_ND = torch.zeros_like(x).index_add(0, row_R, y)
        if tp.size() == 1:
            return y_ND
        shape = (n_rows, x.shape[-1])
        parts = DTensor.from_local(
            y_ND, tp, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=(shape[1], 1)
        )
        return parts.redistribute(placements=[Replicate()]).to_local()

    module.forward = run


def _own_rows(x: Tensor, tp: DeviceMesh) -> Tensor:
    shared = DTensor.from_local(x, tp, [Replicate()], run_check=False)
    return shared.redistribute(placements=[Shard(0)]).to_local()


def _exchanged(
    expert_R: Tensor, n_local: int, ep: DeviceMesh
) -> tuple[list[int], list[int], Tensor]:
    """Count the rows from each rank and those to each,
    and find the local expert of those that come.

    Each rank tells the others how many rows each of their experts gets from it.
    """
    size = ep.size()
    sent = torch.zeros(n_local * size, dtype=torch.long, device=expert_R.device)
    sent = sent.index_add(0, expert_R, torch.ones_like(expert_R)).view(size, n_local)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent, group=ep.get_group())
    if is_fake(expert_R):
        n = len(expert_R)
        even = [n * (i + 1) // size - n * i // size for i in range(size)]
        return even, even, torch.arange(n, device=expert_R.device) % n_local
    experts = torch.arange(n_local, device=expert_R.device).repeat(size)
    return (got.sum(1).tolist(), sent.sum(1).tolist(), experts.repeat_interleave(got.flatten()))


def apply_plan(model: nn.Module, plan: Mapping[str, str], world: World) -> None:
    """Cut what the plan names: `{"decoder.layers.*.mlp.up_proj": "colwise"}`; * is any number."""
    modules = dict(model.named_modules())
    tp, ep = world.tp, world.ep
    for pattern, style in plan.items():
        for name in matching(pattern, modules):
            parent = modules[name.rpartition(".")[0]]
            if style == "ep_dispatch_experts":
                if ep.size() > 1:
                    spread_experts(modules[name], world)
            elif tp.size() > 1:
                if style not in STYLES:
                    known = (*STYLES, "ep_dispatch_experts")
                    raise InputError(
                        f"the plan's style '{shown(style)}' is unknown; "
                        + nearest(style, known, f"choose one of {', '.join(known)}")
                    )
                STYLES[style](modules[name], tp, parent)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """List the names that match a pattern.

    >>> matching("layers.*.mlp", ["layers.0.mlp", "layers.12.mlp", "layers.0.mlp.up_proj"])
    ['layers.0.mlp', 'layers.12.mlp']
    """
    wanted = re.compile(re.escape(pattern).replace(r"\*", "[0-9]+"))
    return [name for name in names if wanted.fullmatch(name)]


def shard_fully(
    model: nn.Module,
    units: Sequence[nn.Module | list[nn.Module]],
    experts: Sequence[nn.Module],
    world: World,
    compute: torch.dtype | None = None,
    without: set[nn.Parameter] | None = None,
) -> None:
    """Let FSDP2 spread what is left over the ranks that hold the same, unit by unit.

    ZeRO 3 gathers a unit for its forward and again for its backward. ZeRO 2 keeps it in between;
    ZeRO 1 keeps it and its gradients over the step. ZeRO 0 spreads nothing: gradients are summed.
    With `compute`, what is gathered is of this type, whatever is kept. `without` are parameters
    that are left as they are.
    """
    mesh, reshard = world.mesh, world.zero == 3
    policy = MixedPrecisionPolicy(param_dtype=compute)

    def spread_out(
        module: nn.Module | list[nn.Module],
        over: DeviceMesh,
        axis: Callable[[nn.Parameter], Shard] | None = None,
    ) -> None:
        fully_shard(
            module,
            mesh=over,
            reshard_after_forward=reshard,
            mp_policy=policy,
            shard_placement_fn=axis,
            ignored_params=without,
        )

    def axis_of(parameter: nn.Parameter) -> Shard:
        shape = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
        return Shard(spread_axis(shape, mesh.expert_shard if world.zero else 1))

    for module in experts if mesh.ep > 1 else ():
        spread_out(module, world.expert_shares, axis_of)
    for unit in units:
        spread_out(unit, world.shares)
    spread_out(model, world.shares)
    if world.zero < 2:
        assert isinstance(model, FSDPModule)
        model.set_reshard_after_backward(False)


def end_step(model: nn.Module) -> None:
    """Leave each rank its share alone, as before an optimizer's step."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


ATTENTION = F.scaled_dot_product_attention  # torch puts its own in its place

NOT_TAKEN = "inputs need to be redistributed"  # torch's own words


class RingAttention(FunctionMode):
    """Inside, attention runs by flash attention's kernel of CUDA, which torch's ring takes."""

    def run_function(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the kernel, or let torch.

        Raises `InputError` for heads that torch's ring does not take: with 2.11 DeepSeek-V2's.
        """
        if func is not ATTENTION:
            return func(*args, **kwargs)
        try:
            return by_flash(*args, **kwargs)
        except AssertionError as error:
            if str(error) != NOT_TAKEN:
                raise
            raise InputError(
                f"torch {torch.__version__} cannot run this model's attention on ranks that hold "
                "parts of a sequence; leave cp out, take --formula, or install torch 2.13"
            ) from None


# torch's operator -> what it is, and which argument is the whole tensor: the one that is larger
# where a group gathers or scatters
KINDS = {
    "c10d::allreduce_": "all-reduce",
    "_c10d_functional::all_reduce": "all-reduce",
    "_c10d_functional::all_reduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::allgather_": "all-gather",
    "_c10d_functional::all_gather_into_tensor": "all-gather",
    "_c10d_functional::all_gather_into_tensor_out": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
    "_c10d_functional::reduce_scatter_tensor": "reduce-scatter",
    "c10d::alltoall_base_": "all-to-all",
    "_c10d_functional::all_to_all_single": "all-to-all",
    "_c10d_functional_autograd::all_to_all_single": "all-to-all",
    "c10d::broadcast_": "broadcast",
    "c10d::send": "send",
    "c10d::recv_": "receive",
}
LOCAL = frozenset(
    ["_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", "c10d::barrier"]
)
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class UnknownCollective(LookupError):
    """A communication of torch's that has no row in `KINDS`: it would be counted as nothing."""


# What a collective is, the group it runs in, the bytes of the whole tensor: from one to each other,
# of that which this rank sends.
Seen = tuple[str, str, int]


class OnParts(DispatchMode):
    """Runs each operator; of a DTensor's, those on this rank's part."""

    def leaves_to(self, types: Iterable[type]) -> bool:
        """Let DTensor run what it is asked for: what it does with a part comes here again."""
        return DTensor in types


class Traffic(OnParts):
    """Records collectives inside `with`; `groups` says what each process group is for."""

    def __init__(self, groups: dict[str, str]) -> None:
        super().__init__()
        self._groups = groups
        self.seen = Counter[Seen]()

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the operator, then write it down if it communicates."""
        out = func(*args, **kwargs)
        if func.namespace in NAMESPACES:
            self._note(operator_name(func), args, out)
        return out

    def taken(self, phase: str = "") -> dict[tuple[str, str, str, int], int]:
        """Take what was seen since the last call, as of a phase."""
        seen, self.seen = self.seen, Counter()
        return {(phase, *each): times for each, times in seen.items()}

    def _note(self, name: str, args: tuple[object, ...], out: object) -> None:
        if name in LOCAL:
            return
        if name not in KINDS:
            raise UnknownCollective(f"{name} communicates, and is not known here")
        if KINDS[name] == "all-to-all":
            n_bytes = _bytes(args)[2 if name == "c10d::alltoall_base_" else 1]
        else:
            n_bytes = max(_bytes((*args, out)))
        group = group_of(args, self._groups)
        mesh_group, kind = self._groups.get(group, "other"), KINDS[name]
        if mesh_group == "cp" and kind == "all-to-all" and _to_one(args):
            kind = "permute"
        self.seen[kind, mesh_group, n_bytes] += 1


def _to_one(args: Iterable[object]) -> bool:
    """Tell whether what could go to all goes to one rank, which is how torch permutes."""
    splits = [each for each in args if isinstance(each, list | tuple)]
    return bool(splits) and all(sum(n != 0 for n in split) == 1 for split in splits)


def _bytes(values: Iterable[object]) -> list[int]:
    sizes = [0]
    for value in values:
        if isinstance(value, Tensor):
            sizes.append(value.numel() * value.element_size())
        elif isinstance(value, list | tuple):
            sizes.append(sum(_bytes(value)))
    return sizes


def state_bytes(optimizer: str, sizes: Sequence[int], dtype: torch.dtype) -> int:
    """Count the bytes of the state that an optimizer keeps for tensors of these many values."""
    parameters = [nn.Parameter(torch.empty(n, dtype=dtype, device="meta")) for n in sizes]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    return tensor_bytes(states(stepped(optimizer, parameters)))


def stepped(optimizer: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer and step it once, as it is written, by the gradients that are there."""
    (made_one,) = made(Setup(optimizer=optimizer), list(parameters), [])
    with uncompiled() if optimizer == ADAM8BIT else nullcontext():
        made_one.step()
    return made_one


def states(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """Yield every tensor that an optimizer keeps on this rank, of a wrapper those inside."""
    return (tensor for _, _, tensor in kept_states(optimizer, local_part))
