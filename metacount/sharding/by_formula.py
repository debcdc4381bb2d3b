"""Counts a whole mesh by formulas alone: every kind of rank, without a model and without torch."""

from __future__ import annotations

from functools import cache, lru_cache

from metacount.errors import SpecError
from metacount.formulas import ends, folds
from metacount.formulas.block import STORED, Given, Layer, layer_of, run_block
from metacount.formulas.masks import cached_positions
from metacount.formulas.pieces import (
    counted_weights,
    nominal_pieces,
    run_of,
    stream,
)
from metacount.formulas.ranks import (
    Cut,
    active_values,
    cut_shape,
    cuts_of,
    is_expert,
    rank_spec,
    shard_values,
    spread_moves,
)
from metacount.formulas.step import OPTIMIZERS, check_saved
from metacount.formulas.tape import (
    BACKWARD,
    EAGER,
    FLASH,
    FORWARD,
    FULL,
    NONE,
    SDPA,
    SELECTIVE,
    TOKENS,
    Move,
    Op,
    Pass,
    Rank,
    Tape,
    Weight,
)
from metacount.frozen import frozen
from metacount.sharding.adding import Part, Ran, kinds_of_mesh
from metacount.sharding.plan import Plan, layers_of_stages
from metacount.sharding.result import Held, Job, Kind
from metacount.spec import DTYPE_BYTES, ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator


# What an optimizer keeps of a tensor: of a rank's share of it, which is all that the rank knows.
STATES = {
    name: OPTIMIZERS[name] for name in ("adamw", "adagrad", "sgd", "sgd-momentum", "adam8bit")
}


@frozen
class Unit(Part):
    """A part of the model and its tensors, those gathered at once.

    `layer` says what the layers do; of an end of the model it is None. `window`: what they see at
    most.
    """

    cuts: tuple[tuple[Cut, ...], ...]
    layers: tuple[int, ...] = ()
    layer: Layer | None = None
    window: int | None = None
    first: bool = False
    last: bool = False


@lru_cache(maxsize=64)  # a search asks for as many meshes of one model
def units_of(spec: ModelSpec, pp: int) -> tuple[Unit, ...]:
    """Split a model into its parts, those layers together that are alike."""
    stack = spec.last_stack
    alike: dict[Layer, list[int]] = {}
    for i in range(stack.n_layers):
        alike.setdefault(layer_of(spec, stack, i), []).append(i)
    window = stack.attention.window
    units = []
    for layer, layers in alike.items():
        tape = _forward(spec, layer, Pass(batch_size=2, seq_len=2))
        weights = (weight for weight in tape.weights if not weight.name.startswith(STORED))
        units.append(
            Unit(
                cuts=(tuple(cuts_of(weights)),),
                layers=tuple(layers),
                layer=layer,
                window=window.size if layer.windowed and window is not None else None,
            )
        )
    table, *others = cuts_of(_end(spec, Pass(batch_size=2, seq_len=2), last=False).weights)
    head = cuts_of(_end(spec, Pass(batch_size=2, seq_len=2), last=True).weights)
    # blocks that layers share are gathered with what else the model has outside its layers
    counted = counted_weights(spec, nominal_pieces(spec))
    others += cuts_of(weight for _, weight in counted if weight.uses is not None)
    tied = spec.head is not None and spec.head.tied
    if tied and pp == 1:
        return (*units, Unit(cuts=((table, *others, *head),), first=True, last=True))
    if tied:  # a last stage has a table of its own
        head.append(Cut(role="head", shape=table.shape, axis=table.axis))
    # a pooler is gathered apart from the head and its norms
    groups = (
        tuple(cut for cut in head if cut.role != "other"),
        tuple(cut for cut in head if cut.role == "other"),
    )
    return (Unit(cuts=((table,), tuple(others)), first=True), *units, Unit(cuts=groups, last=True))


def _forward(spec: ModelSpec, layer: Layer, sizes: Pass) -> Tape:
    run = run_of(spec, sizes)
    _, bias, queries = ends.embed(Tape(run), spec, spec.last_stack, TOKENS)
    tape = Tape(run)
    given = Given(bias=bias, queries=queries)
    run_block(tape, spec, layer, stream(tape, spec, TOKENS), given)
    return tape


def _end(spec: ModelSpec, sizes: Pass, *, last: bool) -> Tape:
    """Record what stands before the first block, or after the last one."""
    tape = Tape(run_of(spec, sizes))
    if not last:
        ends.embed(tape, spec, spec.last_stack, TOKENS)
        return tape
    x = ends.final_norm(tape, spec.last_stack, stream(tape, spec, TOKENS))
    logits = ends.unembed(tape, spec, x)
    if logits is not None:
        ends.loss(tape, logits)
    return tape


def counted_kinds(spec: ModelSpec, job: Job, plan: Plan) -> list[Kind]:
    """Count every kind of rank of a mesh, by formula; the plan is ours.

    >>> from metacount.catalog import entry
    >>> from metacount.sharding.mesh import Mesh
    >>> from metacount.sharding.plan import default_plan
    >>> spec = entry("llama-7b").spec()
    >>> job = Job(mesh=Mesh(dp=4, tp=2), train=True, zero=3, optimizer="adamw", batch_size=4,
    ...           seq_len=2048, micro_batches=1, dtype="bf16")
    >>> [(kind.count, kind.params) for kind in counted_kinds(spec, job, default_plan(spec))]
    [(8, 842335232)]
    """
    units = units_of(spec, job.mesh.pp)
    width = DTYPE_BYTES[job.stored]

    @cache
    def held_at(rank: int) -> list[tuple[Held, ...]]:
        return [_held(unit, rank_at(job, rank)) for unit in units]

    def run(part: int, rank: int) -> Ran:
        return _ran(spec, job, units[part], rank_at(job, rank))

    @cache
    def state_of(sizes: tuple[int, ...]) -> int:
        weights = (Weight(role="", name="", shape=(n,)) for n in sizes)
        return sum(int(STATES[job.optimizer](each, width)) for each in weights) if job.train else 0

    layers = layers_of_stages(spec, job.mesh, plan)
    return kinds_of_mesh(spec, job, layers, units, held_at, run, state_of)


def rank_at(job: Job, number: int) -> Rank:
    """Return the degrees and indices of a rank; without ZeRO, nothing is spread."""
    mesh, at = job.mesh, job.mesh.place(number)
    spread = job.train and job.zero > 0
    return Rank(
        tp=mesh.tp,
        ep=mesh.ep,
        cp=mesh.cp if job.ring else 1,
        tp_index=at.tensor,
        shard=mesh.shard if spread else 1,
        shard_index=at.shard if spread else 0,
        copies=mesh.expert_shard if spread else 1,
        copy_index=at.copy if spread else 0,
        sequence=job.sequence_parallel,
        cut_logits=job.loss_parallel,
    )


def _held(unit: Unit, rank: Rank) -> tuple[Held, ...]:
    return tuple(
        Held(
            name="",
            role=cut.role,
            whole=cut.shape,
            cut=cut_shape(cut, rank),
            active=active_values(cut, rank),
            shard=shard_values(cut, rank),
            expert=is_expert(cut, rank),
            trained=cut.trained,
        )
        for group in unit.cuts
        for cut in group
    )


def _ran(spec: ModelSpec, job: Job, unit: Unit, rank: Rank) -> Ran:
    ops, tape = _ops_of(spec, job, unit, rank)
    moves: dict[tuple[str, str, str, int], int] = {}
    width = DTYPE_BYTES[job.dtype]
    for phase, move in _moves(job, unit, rank, ops):
        key = (phase, move.kind, move.group, move.values * move.width(width, cast=job.master))
        moves[key] = moves.get(key, 0) + 1
    saved, again = _kept(spec, job, unit, ops)
    cache, state = _served(job, unit, tape)
    return Ran(
        collectives=moves,
        activation_bytes=saved,
        recomputed_bytes=again,
        kv_cache_bytes=cache,
        state_bytes=state,
    )


def _ops_of(spec: ModelSpec, job: Job, unit: Unit, rank: Rank) -> tuple[dict[str, list[Op]], Tape]:
    """Record each pass of a part on a rank; return the operations by pass, and the last tape."""
    by_path: dict[str, list[Op]] = {}
    tape = Tape(run_of(spec, Pass(batch_size=1, seq_len=1)))
    for name, length in job.passes.items():
        sizes = Pass(
            batch_size=job.rows,
            seq_len=length,
            bytes_per_value=DTYPE_BYTES[job.dtype],
            attention=job.attention if job.train else EAGER,
            ring=job.ring,
            rank=rank,
        )
        if unit.layer is not None:
            tape = _forward(rank_spec(spec, rank), unit.layer, sizes)
            by_path[name] = tape.ops
            continue
        both = [
            _end(spec, sizes, last=last)
            for last, has in ((False, unit.first), (True, unit.last))
            if has
        ]
        by_path[name] = [op for tape in both for op in tape.ops]
    return by_path, tape


def _kept(
    spec: ModelSpec, job: Job, unit: Unit, ops: dict[str, list[Op]]
) -> tuple[int | None, int]:
    """Count the bytes that a part saves and recomputes; None without a formula."""
    if not job.train:
        return 0, 0
    if without_formula(spec, job):
        return None, 0
    (of_step,) = ops.values()
    saved = int(sum(n_bytes for _, n_bytes in folds.saved_bytes(of_step)))
    if unit.layer is None or job.checkpointing == NONE:
        return saved, 0
    return job.tokens_between * spec.d_model * DTYPE_BYTES[job.dtype], saved


def _served(job: Job, unit: Unit, tape: Tape) -> tuple[int, int]:
    if job.train or unit.layer is None or not job.decodes:
        return 0, 0
    width = DTYPE_BYTES[job.dtype]
    positions = cached_positions(job.length, unit.window)
    cache = job.rows * positions * sum(tensor.size for tensor in tape.cached)
    cache *= DTYPE_BYTES[job.kv_dtype or job.dtype]
    state = job.rows * sum(
        cached.size * (width if cached.bytes_per_value is None else cached.bytes_per_value)
        for cached in tape.states
    )
    return int(cache), int(state)


def without_formula(spec: ModelSpec, job: Job) -> str:
    """Say why no formula counts what the backward keeps; empty where one does."""
    if spec.head is None:
        return "without logits there is no loss"
    if job.attention == SDPA:
        return f"attention has no formula: got '{SDPA}'; choose {EAGER} or {FLASH}"
    if job.checkpointing == SELECTIVE:
        reason = f"checkpointing has no formula of what a rank keeps: got '{SELECTIVE}'"
        return f"{reason}; choose {NONE} or {FULL}"
    run = Pass(
        batch_size=job.rows,
        seq_len=job.length,
        bytes_per_value=DTYPE_BYTES[job.dtype],
        attention=job.attention,
        checkpointing=job.checkpointing,
        ring=job.ring,
    )
    try:
        check_saved(spec, run)
    except SpecError as error:
        return str(error)
    return ""


def _moves(
    job: Job, unit: Unit, rank: Rank, ops: dict[str, list[Op]]
) -> Iterator[tuple[str, Move]]:
    """Yield what a rank sends for a part: in each pass, and by ZeRO."""
    for name, of_pass in ops.items():
        for op in of_pass:
            for move in op.moves:
                if job.train:
                    yield move.phase, move
                elif move.phase == FORWARD:
                    yield name, move
        if unit.layer is not None and job.train and job.checkpointing != NONE:
            # where the results of products are saved, nobody's keys and values are gathered again
            saved = ("cp",) if job.checkpointing == SELECTIVE else ()
            for op in folds.repeated_ops(of_pass):
                for move in op.moves:
                    if move.phase == FORWARD and move.group not in saved:
                        yield BACKWARD, move
    if job.train:
        # without ZeRO the groups are there, and sum gradients
        entire = Rank(
            tp=rank.tp,
            ep=rank.ep,
            tp_index=rank.tp_index,
            shard=job.mesh.shard,
            copies=job.mesh.expert_shard,
        )
        for group in unit.cuts:
            for move in spread_moves(group, entire, zero=job.zero):
                yield move.phase, move
