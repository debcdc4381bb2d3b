"""Counts a whole mesh by formulas alone: every kind of rank, without a model and without torch."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import kept_sharding, sharding, traffic
from metacount.formulas.ends import table_width
from metacount.formulas.forward import Pass
from metacount.formulas.kept import bytes_of
from metacount.formulas.kept_ends import table_terms
from metacount.formulas.kept_sharding import block_kept, block_state_bytes, cached_bytes, last_kept
from metacount.formulas.optimizer import (
    adagrad_state,
    adam8bit_state,
    adamw_state,
    momentum_state,
    sgd_state,
)
from metacount.formulas.sharding import Rank
from metacount.formulas.terms import Weight
from metacount.formulas.traffic import Move
from metacount.sharding.adding import Piece, between_stages, kind_from
from metacount.sharding.formula.units import Unit, copies_of, units_of
from metacount.sharding.mesh import breaks, kinds, ranges
from metacount.sharding.plan import Plan, layers_of_stages
from metacount.sharding.result import Held, Job, Kind
from metacount.spec import DTYPE_BYTES, ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metacount.formulas.dim import Dim

# What an optimizer keeps of a tensor: of a rank's share of it, which is all that the rank knows.
STATES: dict[str, Callable[[Weight, int], Dim]] = {
    "adamw": adamw_state,
    "adagrad": adagrad_state,
    "sgd": sgd_state,
    "sgd-momentum": momentum_state,
    "adam8bit": adam8bit_state,
}


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
    mesh, units = job.mesh, units_of(spec, job.mesh.pp)
    layers = layers_of_stages(spec, mesh, plan)
    found, start = [], 0
    stages: dict[tuple[tuple[int, ...], bool, bool, int], list[int]] = {}
    for stage, n in enumerate(layers):
        own, first, last = range(start, start + n), stage == 0, stage == mesh.pp - 1
        copies = tuple(copies_of(unit, own, first=first, last=last) for unit in units)
        stages.setdefault((copies, first, last, job.kept_at(stage)), []).append(stage)
        start += n
    groups, per_stage = _groups(units, job), mesh.stage_ranks
    for (copies, first, last, _), alike in stages.items():
        between = between_stages(job, spec.d_model, first=first, last=last)
        for ranks in groups:
            rank = rank_at(job, ranks[0])
            pieces = [
                _piece(spec, job, unit, n, rank) for unit, n in zip(units, copies, strict=True) if n
            ]
            all_ranks = [stage * per_stage + r for stage in alike for r in ranks]
            found.append(
                kind_from(job, list(ranges(all_ranks)), alike, len(all_ranks), pieces, between)
            )
    return found


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
    )


def _groups(units: Sequence[Unit], job: Job) -> list[list[int]]:
    """Group the ranks of a stage that hold equal parts."""
    mesh = job.mesh
    cuts = [cut for unit in units for group in unit.cuts for cut in group]
    sizes = [
        cut.shape[cut.axis] // cut.parts
        for cut in cuts
        if cut.axis is not None and not sharding.is_expert(cut, Rank(ep=mesh.ep))
    ]
    tensor = breaks([*sizes, *(job.token_counts if mesh.ep > 1 else ())], mesh.tp)
    shard, copy = {0}, {0}
    if job.train and job.zero:
        for index in tensor:
            rank = Rank(tp=mesh.tp, ep=mesh.ep, tp_index=index)
            for cut in cuts:
                rows, *rest = sharding.cut_shape(cut, rank)
                if not sharding.is_expert(cut, rank):
                    shard.update(breaks([rows], mesh.shard))
                elif rows >= mesh.expert_shard or rest[0] % mesh.expert_shard:
                    copy.update(breaks([rows], mesh.expert_shard))
    return list(kinds(mesh, sorted(shard), tensor, sorted(copy)).values())


def _piece(spec: ModelSpec, job: Job, unit: Unit, copies: int, rank: Rank) -> Piece:
    """Count what a rank holds and sends of one part."""
    cuts = [cut for group in unit.cuts for cut in group]
    held = tuple(
        Held(
            name="",
            role=cut.role,
            whole=cut.shape,
            cut=sharding.cut_shape(cut, rank),
            active=sharding.active_values(cut, rank),
            shard=sharding.shard_values(cut, rank),
            expert=sharding.is_expert(cut, rank),
            trained=cut.trained,
        )
        for cut in cuts
    )
    moves: dict[tuple[str, str, str, int], int] = {}
    width = DTYPE_BYTES[job.dtype]
    for move in _moves(spec, job, unit, rank):
        key = (move.phase, move.kind, move.group, move.values * move.width(width, cast=job.master))
        moves[key] = moves.get(key, 0) + 1
    kept, again = _kept(spec, job, unit, rank)
    cache, state = _served(spec, job, unit, rank)
    return Piece(
        copies=copies,
        layer=bool(unit.layers),
        held=held,
        collectives=moves,
        activation_bytes=kept,
        recomputed_bytes=again,
        optimizer_bytes=_stepped(job, held),
        kv_cache_bytes=cache,
        state_bytes=state,
        loss_bytes=job.loss_bytes(spec.vocab_size or 0) if unit.last and spec.head else 0,
    )


def _stepped(job: Job, held: Sequence[Held]) -> int:
    """Count the bytes that the optimizer keeps of a rank's shares."""
    if not job.train:
        return 0
    state, width = STATES[job.optimizer], DTYPE_BYTES[job.stored]
    trained = (each for each in held if each.trained)
    shares = (Weight(role=each.role, name=each.name, shape=(each.shard,)) for each in trained)
    return sum(int(state(share, width)) for share in shares)


def _kept(spec: ModelSpec, job: Job, unit: Unit, rank: Rank) -> tuple[int | None, int]:
    """Count the bytes that a part keeps for its backward,
    and that it recomputes; None without a formula.
    """
    if not job.train:
        return 0, 0
    if without_formula(spec, job):
        return None, 0
    run = pass_of(job)
    if unit.layers:
        whole = bytes_of(
            block_kept(
                spec,
                run,
                rank,
                mixer=unit.mixer,
                ffn=unit.ffn,
                rotated=unit.rotated,
                first_norm=unit.first_norm,
            )
        )
        if job.checkpointing == "none":
            return int(whole), 0
        return job.rows * job.length * spec.d_model * DTYPE_BYTES[job.dtype], int(whole)
    found = table_terms(spec, run, job.length) if unit.first else []
    found += last_kept(spec, run) if unit.last else []
    return int(bytes_of(found)), 0


def _served(spec: ModelSpec, job: Job, unit: Unit, rank: Rank) -> tuple[int, int]:
    """Count the bytes of keys and values, and of states, of the sequences that a rank serves."""
    if job.train or not unit.layers or not job.decodes:
        return 0, 0
    run, mixer = pass_of(job), unit.mixer
    cache = cached_bytes(spec, run, rank, mixer=mixer, window=unit.window, indexed=unit.indexed)
    return int(cache), int(block_state_bytes(spec, run, mixer=mixer))


def pass_of(job: Job) -> Pass:
    """Describe a forward of one micro-batch on a rank;
    raise `SpecError` for a way that no formula covers.
    """
    return Pass(
        batch_size=job.rows,
        seq_len=job.length,
        bytes_per_value=DTYPE_BYTES[job.dtype],
        attention=job.attention,
        checkpointing=job.checkpointing,
        ring=job.ring,
    )


def without_formula(spec: ModelSpec, job: Job) -> str:
    """Say why no formula counts what the backward keeps; empty where one does."""
    if spec.head is None:
        return "without logits there is no loss"
    try:
        kept_sharding.check_rank_covered(spec, pass_of(job))
    except SpecError as error:
        return str(error)
    return ""


def _moves(spec: ModelSpec, job: Job, unit: Unit, rank: Rank) -> list[Move]:
    found = []
    for phase, n in zip(job.passes, job.token_counts, strict=True):
        for move in _run(spec, unit, rank, n, job.train):
            found.append(move if job.train else _renamed(move, phase))
        if unit.layers and job.train and job.checkpointing != "none":
            products = job.checkpointing == "selective"
            found += traffic.recomputed_moves(
                spec, rank, n_tokens=n, mixer=unit.mixer, ffn=unit.ffn, products=products
            )
    if job.train:
        # without ZeRO the groups are there, and sum gradients
        whole = Rank(
            tp=rank.tp,
            ep=rank.ep,
            tp_index=rank.tp_index,
            shard=job.mesh.shard,
            copies=job.mesh.expert_shard,
        )
        for group in unit.cuts:
            found += traffic.spread_moves(group, whole, zero=job.zero)
    return found


def _renamed(move: Move, phase: str) -> Move:
    return Move(phase=phase, kind=move.kind, group=move.group, values=move.values, kept=move.kept)


def _run(spec: ModelSpec, unit: Unit, rank: Rank, n: int, train: bool) -> list[Move]:
    """List what one forward and backward of a part sends, without what ZeRO does."""
    if unit.layers:
        return traffic.block_moves(
            spec, rank, n_tokens=n, mixer=unit.mixer, ffn=unit.ffn, train=train
        )
    found, width = [], table_width(spec)
    if unit.first:
        found += traffic.embedding_moves(width, rank, n_tokens=n)
    if unit.last and spec.head is not None and spec.embedding is not None:
        found += traffic.head_moves(width, spec.embedding.vocab_size, rank, n_tokens=n, train=train)
    return found
