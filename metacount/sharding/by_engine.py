"""Measures a whole mesh: one rank of each kind, each part of the model once."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel

from metacount.measure.ours import owned, role_of
from metacount.measure.torch_private import (
    fake_tensors,
    forget_ranks,
    is_fake,
    operator_name,
    parameters_of,
    put_tensor,
    resizing_told,
    ring_attention,
    shapes_unwatched,
    stages_unasked,
    tensors_of,
    tree_leaves,
    unwatched,
)
from metacount.modules.attention import CHOOSING
from metacount.modules.block import Block
from metacount.modules.build import build
from metacount.modules.model import Model, Stack
from metacount.modules.moe import Experts
from metacount.sharding.adding import UNSEEN, Part, Ran, kinds_of_mesh
from metacount.sharding.engine import (
    OnParts,
    RingAttention,
    Traffic,
    World,
    apply_plan,
    end_step,
    fake_world,
    local_part,
    only_new_garbage,
    shard_fully,
    state_bytes,
    states,
    sum_norm_gradients,
)
from metacount.sharding.plan import Plan, for_mesh, layers_of_stages
from metacount.sharding.result import Held, Job, Kind
from metacount.spec import ModelSpec
from metacount.spec.position import Sinusoidal
from metacount.tensors import DTYPES, tensor_bytes
from metacount.training.model import FusedAttention, Watch, checkpointed
from metacount.training.optimizers import Updates
from metacount.training.programs import as_trained
from metacount.training.setup import Setup
from metacount.training.step import BACKWARD, FORWARD, LOSS, OPTIMIZER, Ledger, loss_of

if TYPE_CHECKING:
    from metacount.measure.torch_private import OpOverload
    from metacount.modules.model import Output


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
        blocks = [Part(layers=tuple(layers)) for layers in kinds.values()]
        if self.spec.head is not None and self.spec.head.tied and stages == 1:
            return [*blocks, Part(first=True, last=True)]
        return [Part(first=True), *blocks, Part(last=True)]

    def piece(self, layers: Sequence[int], *, first: bool, last: bool) -> Model:
        """Make a new module of some of the layers and of the ends."""
        model = copy.deepcopy(self._ends)
        model.last_stack.layers = nn.ModuleList(copy.deepcopy(self._blocks[i]) for i in layers)
        return without_ends(model, first=first, last=last)

    def part(self, part: Part) -> Model:
        """Make a new module of a part: of layers that are alike, one."""
        model = self.piece(part.layers[:1], first=part.first, last=part.last)
        stack = model.last_stack
        for block in stack.blocks:
            if block.beside:
                vars(block)["forward"] = _added_at_once(block)
            if block.shares:
                vars(stack)["_shared"] = lambda _: (stack.shared_blocks or [None])[0]
        if stack.shared_blocks is not None and not stack.blocks:
            stack.register_forward_hook(_with_gradients)
        return model


def _with_gradients(stack: nn.Module, args: object, out: Tensor) -> Tensor:
    """Add zero to a stack's output, so that shared blocks get gradients
    as layers elsewhere give them.

    A sum of values times zero keeps nothing for its backward.
    """
    assert isinstance(stack, Stack) and stack.shared_blocks is not None
    return out + 0 * torch.stack([p.sum() for p in stack.shared_blocks.parameters()]).sum()


def sharing(model: Model) -> list[nn.Module]:
    """List the modules of shared blocks, if the model lacks the first end, which holds them."""
    shared = model.last_stack.shared_blocks
    return [] if shared is None or model.embed_tokens is not None else [*shared.modules()]


def lent_to(model: Model, compute: torch.dtype | None) -> set[nn.Parameter] | None:
    """Give shared blocks their gathered parameters, and return these; None if there are none."""
    shared = set()
    for owner in sharing(model):
        for name, tensor in parameters_of(owner).items():
            lent = nn.Parameter(tensor.detach().to(compute or tensor.dtype))
            put_tensor(owner, name, lent)
            shared.add(lent)
    return shared or None


def _added_at_once(block: Block) -> Callable[..., tuple[Tensor, None]]:
    forward: Callable[..., Tensor | tuple[Tensor, Tensor]] = block.forward

    def run(*args: object, **how: object) -> tuple[Tensor, None]:
        x_BSD, beside_BSD = forward(*args, **how)  # of such a block two
        return x_BSD + beside_BSD, None

    return run


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


def input_of(model: Model, batch: int, length: int, dtype: str, between: int = 1) -> Tensor:
    """Make what a stage reads: tokens, or hidden states, one part in `between`, with gradient."""
    if model.embed_tokens is not None:
        return torch.zeros(batch, length, dtype=torch.long)
    shape = (batch, length // between, model.spec.d_model)
    return torch.empty(shape, dtype=DTYPES[dtype], requires_grad=True)


def tensors_with_roles(model: Model) -> Iterator[tuple[str, str, nn.Module, Tensor]]:
    """Yield name, role, owner and tensor of each distinct parameter that is not lent."""
    names = {id(module): name for name, module in model.named_modules()}
    lent = {id(module) for module in sharing(model)}
    for path, name, tensor in owned(model):
        if any(id(module) in lent for module in path):
            continue
        owner = names[id(path[-1])]
        yield f"{owner}.{name}" if owner else name, role_of(path) or "other", path[-1], tensor


def place(
    model: Model, styles: dict[str, str], world: World, job: Job, *, by_fsdp: bool = True
) -> list[Held]:
    """Place a part, on meta or in memory, and say what this rank holds of it."""
    shapes = {name: tuple(tensor.shape) for name, _, _, tensor in tensors_with_roles(model)}
    apply_plan(model, styles, world)
    if job.sequence_parallel:
        sum_norm_gradients(model, world.tp)
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
    # FSDP2 on one rank alone, too, with stages or spread experts: DTensor would leave the gradient
    # of a cut token table whole there
    mesh = world.mesh
    spread = max(mesh.shard, mesh.expert_shard, mesh.pp, mesh.ep) > 1
    if job.train and by_fsdp and (job.master or spread):
        compute = None if job.stored == job.dtype else DTYPES[job.dtype]
        shard_fully(model, *units_of(model), world, compute, lent_to(model, compute))
    held = {name: local_part(tensor).numel() for name, _, _, tensor in tensors_with_roles(model)}
    return [
        Held(
            name=name,
            role=role,
            whole=shapes[name],
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
    """Run a part forward and backward on fake tensors; return what it keeps and sends."""
    mode = fake_tensors()
    with mode:
        in_memory(model)
    place(model, styles, world, job)
    traffic, keeping = Traffic(world.groups), Followed(model)
    blocks: list[nn.Module] = [*model.last_stack.blocks]
    cut = loss_parallel() if job.loss_parallel else nullcontext()
    with mode, EvenChoice(), traffic, as_trained(model, job.attention), ring(world, job), cut:
        resized = resizing_told(keeping.resized)
        with checkpointed(blocks, job.checkpointing, keeping, lambda: fused(job)), resized:
            out = _trained(model, job, keeping)
            sent, saved = traffic.taken("forward"), keeping.saved_bytes()
            out.backward(torch.ones_like(out))
        sent |= traffic.taken("backward")
        end_step(model)
        recomputed = 0
        if blocks and job.checkpointing != "none":
            again = Followed(model)
            with resizing_told(again.resized):
                held = _trained(model, job, again)
            recomputed = again.saved_bytes()
            del held
    return Ran(collectives=sent, activation_bytes=saved, recomputed_bytes=recomputed)


def _trained(model: Model, job: Job, keeping: Followed) -> Tensor:
    """Compute what a part gives of its input: hidden states, or the loss of the logits."""
    between = job.rows * job.length // job.tokens_between
    given = input_of(model, job.rows, job.length, job.dtype, between)
    with keeping.saving(), fused(job):
        out = result(model(given))
        if model.lm_head is None:
            return out
        targets = torch.zeros((job.rows, job.length), dtype=torch.long)
        return loss_of(out, targets, Setup(attention=job.attention))


def ring(world: World, job: Job) -> AbstractContextManager[None]:
    """Let ranks exchange keys and values inside, where a job has them do so."""
    return ring_attention(world.context) if job.ring else nullcontext()


def fused(job: Job) -> FusedAttention | RingAttention:
    """Choose the mode in which attention runs by the kernel that the job names."""
    return RingAttention() if job.ring else FusedAttention(job.attention, set())


def serve_once(model: Model, styles: dict[str, str], world: World, job: Job) -> Ran:
    """Run a part over what it is given, and, where it has a cache, over one token more."""
    mode, cached = fake_tensors(), (0, 0)
    sent: dict[tuple[str, str, str, int], int] = {}
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
            sent |= traffic.taken(phase)
            if cache is not None:
                cached = tensor_bytes(cache.tensors()), tensor_bytes(cache.state_tensors())
    return Ran(collectives=sent, kv_cache_bytes=cached[0], state_bytes=cached[1])


def result(out: Output) -> Tensor:
    """Return what a stage passes on, or the logits."""
    tensor: Tensor = out.hidden_BSD if out.logits_BSV is None else out.logits_BSV
    return tensor


class EvenChoice(OnParts):
    """Answers how many rows each expert gets, where no tensor has values: equally many."""

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the operator, or answer it."""
        asked = args[0] if operator_name(func) == "aten::bincount" else None
        if isinstance(asked, torch.Tensor) and is_fake(asked):
            rows, experts = asked.numel(), kwargs.get("minlength", args[-1])
            assert isinstance(experts, int)
            even = [rows * (i + 1) // experts - rows * i // experts for i in range(experts)]
            with unwatched():  # a tensor that has values
                return torch.tensor(even)
        return func(*args, **kwargs)


def measured_kinds(
    spec: ModelSpec, job: Job, plan: Plan, *, whole_step: bool = False
) -> list[Kind]:
    """Measure every kind of rank of a mesh, on a model that runs in a fake world.

    `whole_step`: and the peak of a step of the largest, run as a whole.
    """
    import warnings

    forget_ranks()
    try:
        with warnings.catch_warnings(), only_new_garbage():
            warnings.simplefilter("ignore")  # torch's advice is for those who train
            measuring = Measuring(spec, job, plan)
            kinds = measuring.kinds()
            if whole_step and not job.unfollowed and spec.head is not None:
                largest = max(kinds, key=lambda kind: kind.total_bytes)
                kinds[kinds.index(largest)] = measuring.with_peak(largest)
            return kinds
    finally:
        forget_ranks()


class Measuring:
    """One model on one mesh: its parts, what was measured of each, and where."""

    def __init__(self, spec: ModelSpec, job: Job, plan: Plan) -> None:
        self.job, self.spec, self.mesh = job, spec, job.mesh
        self.styles = for_mesh(plan, job)
        self.layers = layers_of_stages(spec, job.mesh, plan)
        self.whole = Whole(spec, job.stored)
        self.parts = self.whole.parts(job.mesh.pp)

    def kinds(self) -> list[Kind]:
        """Measure every kind of rank, the stages in order."""

        @cache
        def held_at(rank: int) -> list[tuple[Held, ...]]:
            with fake_world(self.mesh, rank, self.job.zero) as world:
                models = map(self.whole.part, self.parts)
                return [tuple(place(each, self.styles, world, self.job)) for each in models]

        def run(part: int, rank: int) -> Ran:
            if part == 0:  # one rank after the other
                forget_ranks()
            once = train_once if self.job.train else serve_once
            with fake_world(self.mesh, rank, self.job.zero) as world:
                return once(self.whole.part(self.parts[part]), self.styles, world, self.job)

        @cache
        def state_of(sizes: tuple[int, ...]) -> int:
            dtype = DTYPES[self.job.stored]
            return state_bytes(self.job.optimizer, sizes, dtype) if self.job.train else 0

        return kinds_of_mesh(self.spec, self.job, self.layers, self.parts, held_at, run, state_of)

    def with_peak(self, kind: Kind) -> Kind:
        """Add the peak of a step that is run; without one, leave what is counted."""
        if kind.peak_unknown == UNSEEN:
            return kind
        parts = self.peak(kind.first)
        if parts is None:
            why = f"of layers that differ no more than {MOST_UNLIKE} are run"
            return Kind(**{**vars(kind), "peak_unknown": kind.peak_unknown and why})
        peak = {"peak_bytes": sum(parts.values()), "peak_parts": parts, "peak_unknown": ""}
        return Kind(**{**vars(kind), **peak})

    def peak(self, rank: int) -> dict[str, int] | None:
        """Run a step of all that a rank has, and return the bytes of each part at its peak.

        Of more than five layers that are alike four and five are run: a further one adds the same
        to each stretch of the step. None of layers that differ where there are more than
        `MOST_UNLIKE`.
        """
        stage, by_stage = self.mesh.place(rank).stage, []
        n, start = self.layers[stage], sum(self.layers[:stage])
        own, few = range(start, start + n), [n]
        if n > FEWEST + 1 and any({*own} <= {*part.layers} for part in self.parts):
            few = [FEWEST, FEWEST + 1]
        if few[0] > MOST_UNLIKE:
            return None
        for layers in few:
            forget_ranks()
            with fake_world(self.mesh, rank, self.job.zero) as world:
                ends = {"first": stage == 0, "last": stage == self.mesh.pp - 1}
                model = self.whole.piece(own[:layers], **ends)
                by_stage.append(follow_step(model, self.styles, world, self.job))
        first, last = by_stage[0], by_stage[-1]
        peaks = [
            {part: size + (n - few[0]) * (last[at][part] - size) for part, size in parts.items()}
            for at, parts in first.items()
        ]
        most = max(peaks, key=lambda parts: sum(parts.values()))
        return {part: size for part, size in most.items() if size}


class Followed(OnParts, Watch):
    """Follows storages of a step on one rank, and says what each is a part of.

    As a mode it follows all that operators make; without, what autograd saves and FSDP2 gathers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.ledger = Ledger()
        self.parts: dict[int, str] = {}  # of a storage, by its number; the first that is said
        self.note("param_bytes", self._model.parameters())
        self.note("buffer_bytes", self._model.buffers())

    def note(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Say of tensors what they are a part of."""
        for tensor in tensors:
            self.parts.setdefault(self.ledger.number(local_part(tensor)), part)

    def saving(self) -> AbstractContextManager[object]:
        """Note what autograd saves inside the block."""
        return saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def saved_bytes(self) -> int:
        """Count the bytes of what was saved and is alive."""
        living = self.ledger.living()
        return self.ledger.sum(n for n in living if self.parts.get(n) == "activation_bytes")

    def inputs(self, tensors: list[Tensor]) -> None:
        """Note what a checkpointed layer keeps."""
        self.note("activation_bytes", tensors)

    result = inputs

    def resized(self, tensor: Tensor) -> None:
        """Note that FSDP2 emptied a gathered parameter, or gathered it again."""
        self.ledger.resized(tensor)
        if tensor.untyped_storage().nbytes():
            self.note("gathered_bytes", [tensor])

    def summed(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Note a bucket of DistributedDataParallel, of which nobody sums the gradients."""
        self.note("bucket_bytes", [bucket.buffer()])
        future = torch.futures.Future[Tensor]()
        future.set_result(bucket.buffer())
        return future

    def _pack(self, tensor: Tensor) -> Tensor:
        self.note("activation_bytes", [tensor])
        return tensor.detach()  # a node's own result would hold the node that holds it

    def run_operator(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """Run the operator, and note what it made, and what FSDP2 gathers and scatters."""
        name = operator_name(func)
        if name == "_c10d_functional::wait_tensor":
            return args[0]  # as a real one does; a fake one would make another
        out = func(*args, **kwargs)
        for made in tree_leaves(out):
            if isinstance(made, Tensor):
                self.ledger.number(made)
        match name:
            case "fsdp::all_gather_copy_in":
                self.note("gathered_bytes", [args[1]])
            case "fsdp::chunk_cat":
                self.note("unscattered_bytes", [*args[0], kwargs["out"]])
        return out


FEWEST = 4  # layers of which the first two and the last two have neighbours as those of more have
MOST_UNLIKE = 32  # layers that are run where they differ


def follow_step(
    model: Model, styles: dict[str, str], world: World, job: Job
) -> dict[tuple[str, str], Counter[str]]:
    """Run a step that is not the first on fake tensors.

    Returns: for each stretch of it, the bytes of each part where most are alive; no buffers.
    """
    mode = fake_tensors()
    with mode:
        in_memory(model)
    place(model, styles, world, job, by_fsdp=not job.replicated)
    follow = Followed(model)
    blocks: list[nn.Module] = [*model.last_stack.blocks]
    _mark_blocks(blocks, follow)
    with ExitStack() as stack:
        for context in (
            *(mode, EvenChoice(), as_trained(model, job.attention)),
            checkpointed(blocks, job.checkpointing, follow, lambda: fused(job)),
            resizing_told(follow.resized),
            shapes_unwatched(),
            stages_unasked(),
            ring(world, job),
        ):
            stack.enter_context(context)
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        updates = Updates(Setup(optimizer=job.optimizer, foreach=True), trained, set())
        updates.prepare()
        shape = (job.rows * (job.micro_batches if job.mesh.pp > 1 else 1), job.length)
        tokens, targets = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
        ran: nn.Module = model
        if job.mesh.pp > 1:
            ran = PipedStage(model, world, job, partial(loss_of, setup=Setup()))
        run_step(ran, job, tokens, targets)  # in which FSDP2 and DTensor prepare themselves
        for name in [name for name, p in trained.items() if p.grad is None]:
            updates.drop(name)  # the loss does not reach it
        model.zero_grad()
        follow.forget()
        if job.replicated:
            with follow:
                ran = DistributedDataParallel(model, init_sync=False)
            ran.register_comm_hook(None, lambda _, bucket: follow.summed(bucket))
        follow.note("optimizer_bytes", (t for each in updates.optimizers for t in states(each)))
        follow.note("received_bytes", ran.received() if isinstance(ran, PipedStage) else [])
        follow.ledger.numbers([tokens, targets])
        with follow:
            run_step(ran, job, tokens, targets, follow)
            follow.note("gradient_bytes", (p.grad for p in trained.values() if p.grad is not None))
            follow.ledger.mark(OPTIMIZER, "")
            updates.step()
    follow.note("input_bytes", [tokens, targets])
    peaks = follow.ledger.peak_of_each_span(follow.parts)
    follow.ledger.close()
    for parts in peaks.values():
        del parts["buffer_bytes"]
    return {at: parts for at, parts in peaks.items() if at[0]}


def run_step(
    model: nn.Module, job: Job, tokens: Tensor, targets: Tensor, follow: Followed | None = None
) -> None:
    """Run forward, loss and backward of a rank's part of the batch, or of each micro-batch.

    Gradients of micro-batches are added up; DistributedDataParallel sums those of ranks in the
    last. Where a step is followed, two run: each further one is as the second.
    """

    def begin(phase: str) -> None:
        if follow is not None:
            follow.ledger.mark(phase, "")

    cut = loss_parallel() if job.loss_parallel else nullcontext()
    if isinstance(model, PipedStage):
        begin(FORWARD)
        with fused(job), cut, nullcontext() if follow is None else follow.saving():
            model.step(tokens, targets)
        end_step(model)
        return
    times = job.micro_batches if follow is None else min(job.micro_batches, 2)
    for i in range(times):
        waits: AbstractContextManager[object] = nullcontext()
        if isinstance(model, DistributedDataParallel) and i < times - 1:
            waits = model.no_sync()
        elif isinstance(model, FSDPModule) and job.zero < 2:
            model.set_requires_gradient_sync(i == times - 1)
        with waits, loss_parallel() if job.loss_parallel else nullcontext():
            with nullcontext() if follow is None else follow.saving():
                begin(FORWARD)
                with fused(job):
                    out = result(model(tokens))
                begin(LOSS)
                loss = loss_of(out, targets, Setup(attention=job.attention))
                del out
                if job.micro_batches > 1:
                    loss = loss / job.micro_batches
            begin(BACKWARD)
            loss.backward()
            del loss
    end_step(model)


class PipedStage(nn.Module):
    """A stage as torch's schedules run it, one tensor in and one out, and a step of it."""

    def __init__(
        self, model: Model, world: World, job: Job, loss: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.model = model
        at, mesh, wide = world.place.stage, job.mesh, DTYPES[job.dtype]

        def like(length: int, width: int) -> Tensor:
            shape = (job.rows, length, width)
            return torch.empty(shape, dtype=wide, device="meta", requires_grad=True)

        hidden = like(job.tokens_between // job.rows, model.spec.d_model)
        tokens = torch.empty((job.rows, job.length), dtype=torch.long, device="meta")
        self._first, self._last = at == 0, at == mesh.pp - 1
        self._stage = PipelineStage(
            self,
            at,
            mesh.pp,
            torch.device("cpu"),
            input_args=(tokens if self._first else hidden,),
            output_args=(like(job.length, model.spec.vocab_size) if self._last else hidden,),
            group=world.stages.get_group(),
        )
        # torch's needs as many micro-batches as stages; of fewer all are kept in either
        one_by_one = job.schedule == "1f1b" and job.micro_batches >= mesh.pp
        kind = Schedule1F1B if one_by_one else ScheduleGPipe
        self._schedule = kind(self._stage, n_microbatches=job.micro_batches, loss_fn=loss)

    def forward(self, x: Tensor) -> Tensor:
        """Compute what the stage passes on."""
        return result(self.model(x))

    def step(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Run all micro-batches forward and backward; return their losses, on the last stage."""
        losses: list[Tensor] = []
        how: Any = {"target": targets, "losses": losses} if self._last else {}
        self._schedule.step(*((tokens,) if self._first else ()), **how, return_outputs=False)
        return losses

    def received(self) -> list[Tensor]:
        """List what comes from the neighbours, which is there from the first step on."""
        infos = (*self._stage.args_recv_info.values(), *self._stage.grad_recv_info.values())
        buffers = (getattr(info, "buffer", None) for each in infos for info in each)
        return [buffer for buffer in buffers if buffer is not None]


def _mark_blocks(blocks: Sequence[nn.Module], follow: Followed) -> None:
    """Let blocks mark where their forward and backward begin, numbered from the nearer end."""

    def hook_into(block: nn.Module, place: str, after: str) -> None:
        def before(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            follow.ledger.mark(FORWARD, place)
            if place == "0" and args[0].requires_grad:
                args[0].register_hook(lambda _: follow.ledger.mark(BACKWARD, "embedding"))

        def behind(_: nn.Module, args: object, out: object) -> None:
            follow.ledger.mark(FORWARD, after)
            tensor = tree_leaves(out)[0]
            tensor.register_hook(lambda _: follow.ledger.mark(BACKWARD, place))

        block.register_forward_pre_hook(before)
        block.register_forward_hook(behind)

    n = len(blocks)
    for i, block in enumerate(blocks):
        place = f"{i}" if i < FEWEST // 2 else f"{i - n}"
        hook_into(block, place, "head" if i == n - 1 else "")
