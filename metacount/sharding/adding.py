"""Adds up the parts of a stage: what one rank holds and sends in a step."""

from __future__ import annotations

from functools import cache
from itertools import chain
from math import prod

from metacount.formulas.model import ROLES
from metacount.formulas.tape import FLOAT32, INDEX
from metacount.frozen import frozen
from metacount.sharding.mesh import (
    Mesh,
    breaks,
    group_layout,
    kinds,
    ranges,
    span,
    spread_axis,
)
from metacount.sharding.result import Collective, Held, Job, Kind
from metacount.spec import DTYPE_BYTES, ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

# Measured on meta of models of all kinds: gradients that come and go in the backward of a block are
# less than four times what it keeps (ALiBi's biases 3.7 times, others without them up to 1.8).
PASSING = 4
# Of all that it updates, what torch's optimizer holds at once as CUDA runs it by default (foreach);
# adam8bit is compiled: what its kernels hold is not known.
STEP_COPIES = {"adamw": 1, "adagrad": 2, "sgd": 0, "sgd-momentum": 0}
UNSEEN = "DistributedDataParallel waits for gradients of parameters that have none"


@frozen
class Part:
    """A part of a model that is counted once: the layers that are alike, or an end of the model."""

    layers: tuple[int, ...] = ()
    first: bool = False  # what is before the blocks is in it
    last: bool = False  # what is after them

    def copies(self, own: range, *, first: bool, last: bool) -> int:
        """Count how many of the part a stage has, whose layers are `own`."""
        if self.layers:
            return sum(i in own for i in self.layers)
        return int((first or not self.first) and (last or not self.last))


@frozen
class Ran:
    """What one rank keeps, sends and caches when a part runs: the same for all of its shares."""

    collectives: Mapping[tuple[str, str, str, int], int]  # phase, kind, group, bytes -> times
    kv_cache_bytes: int = 0
    state_bytes: int = 0  # of mixers that keep a state
    activation_bytes: int | None = 0  # of one micro-batch; None: nobody can say
    recomputed_bytes: int = 0


@frozen
class Piece:
    """A part of a stage on one rank, and how many of it."""

    part: Part
    held: tuple[Held, ...]
    ran: Ran
    optimizer_bytes: int
    loss_bytes: int = 0
    copies: int = 1

    @property
    def saved_bytes(self) -> int:
        """Bytes that its backward keeps of one forward."""
        return self.ran.activation_bytes or 0


def kinds_of_mesh(
    spec: ModelSpec,
    job: Job,
    layers: Sequence[int],
    parts: Sequence[Part],
    held_at: Callable[[int], Sequence[tuple[Held, ...]]],
    run: Callable[[int, int], Ran],
    state_of: Callable[[tuple[int, ...]], int],
) -> list[Kind]:
    """Add up every kind of rank, the stages in order.

    `layers` are those of each stage. On ranks of the first stage: `held_at` gives what one holds of
    each part, `run` runs a part on one, `state_of` counts the bytes that the optimizer keeps for
    tensors of so many values. Stages are of one kind if they have as many of each part, keep as
    many micro-batches, and both or none has an end.
    """
    stages: dict[tuple[tuple[int, ...], bool, bool, int], list[int]] = {}
    start, mesh, n_vocab = 0, job.mesh, spec.vocab_size or 0
    for stage, n in enumerate(layers):
        own, first, last = range(start, start + n), stage == 0, stage == mesh.pp - 1
        copies = tuple(part.copies(own, first=first, last=last) for part in parts)
        stages.setdefault((copies, first, last, job.kept_at(stage)), []).append(stage)
        start += n
    tensor, groups = alike_ranks(lambda rank: [*chain(*held_at(rank))], job)
    ran = {(i, index): run(i, index) for index in tensor for i in range(len(parts))}

    @cache
    def of_rank(i: int, rank: int, n: int) -> Piece:
        held, at = held_at(rank)[i], mesh.place(rank).tensor
        loss = parts[i].last and spec.head is not None
        return Piece(
            part=parts[i],
            held=held,
            ran=ran[i, max(index for index in tensor if index <= at)],
            optimizer_bytes=state_of(tuple(each.shard for each in held if each.trained)),
            loss_bytes=job.loss_bytes(n_vocab, at) if loss else 0,
            copies=n,
        )

    kinds = []
    for (copies, first, last, _), alike in stages.items():
        between = between_stages(job, spec.d_model, first=first, last=last)
        for ranks in groups:
            pieces = [of_rank(i, ranks[0], n) for i, n in enumerate(copies) if n]
            every = [stage * mesh.stage_ranks + rank for stage in alike for rank in ranks]
            kinds.append(kind_from(job, list(ranges(every)), alike, len(every), pieces, between))
    return kinds


def alike_ranks(
    held_at: Callable[[int], Sequence[Held]], job: Job
) -> tuple[list[int], list[list[int]]]:
    """Group the ranks of the first stage that hold equal parts, by where torch's cuts fall.

    Returns: the indices of tensor parallelism from which on a rank has other pieces; the groups.
    """
    mesh = job.mesh
    cuts = [
        each.whole[axis]
        for each in held_at(0)
        for axis in range(len(each.whole))
        if each.cut[axis] != each.whole[axis] and not each.expert
    ]
    tensor = breaks([*cuts, *(job.token_counts if mesh.ep > 1 else ())], mesh.tp)
    shard, copy = {0}, {0}
    for index in tensor if job.train and job.zero else ():
        for each in held_at(index):
            if each.expert:
                size = each.cut[spread_axis(each.cut, mesh.expert_shard)]
                copy.update(breaks([size], mesh.expert_shard))
            else:
                shard.update(breaks([each.cut[0]], mesh.shard))
    return tensor, list(kinds(mesh, sorted(shard), tensor, sorted(copy)).values())


def kind_from(
    job: Job,
    ranks: Sequence[tuple[int, int, int]],
    stages: Sequence[int],
    count: int,
    pieces: Sequence[Piece],
    between: Sequence[Collective],
) -> Kind:
    """Add up the pieces of a stage: what a rank of this kind holds and sends."""
    stored, computed = DTYPE_BYTES[job.stored], DTYPE_BYTES[job.dtype]
    by_role: dict[str, int] = {}
    sums: dict[tuple[str, str, str, int], int] = {}
    spread = job.train and job.zero > 0
    active = params = gradients = full_rows = updated = 0
    gradients_of: list[int] = []  # bytes of the gradients of each piece
    for piece in pieces:
        for each in piece.held:
            cut = prod(each.cut)
            n = each.shard if spread else cut
            by_role[each.role] = by_role.get(each.role, 0) + piece.copies * n
            params += piece.copies * n
            active += piece.copies * each.active
            full_rows += piece.copies * cut
        trained = [each for each in piece.held if each.trained] if job.train else []
        own = sum(each.shard if job.zero >= 2 else prod(each.cut) for each in trained)
        gradients_of.append(own * stored)
        gradients += piece.copies * own
        updated += piece.copies * sum(each.shard for each in trained)
        for key, times in piece.ran.collectives.items():
            sums[key] = sums.get(key, 0) + times * piece.copies
    saved: int | None = job.kept_at(stages[0]) * sum(p.copies * p.saved_bytes for p in pieces)
    if any(piece.ran.activation_bytes is None for piece in pieces):
        saved = None
    accumulates = job.train and job.micro_batches > 1
    there = (gradients * stored, saved or 0)
    if not accumulates:
        there = in_backward(list(zip(pieces, gradients_of, strict=True)))
    gathered = 0
    if spread and job.mesh.shard > 1:
        cuts = (sum(prod(each.cut) for each in piece.held) for piece in pieces)
        gathered = max(cuts, default=0) if job.zero == 3 else full_rows
    groups = {
        name: (group_layout(job.mesh, name)[0], *span(job.mesh, name, job.per_machine))
        for name in {group for _, _, group, _ in sums}
    }
    worst = [
        Collective(
            phase=phase,
            kind=kind,
            group=group,
            ranks=groups[group][0],
            n_bytes=n_bytes,
            times=times * often(job, group),
            machines=groups[group][1],
            outside=groups[group][2],
        )
        for (phase, kind, group, n_bytes), times in sums.items()
        if groups[group][0] > 1
    ]
    tokens = INDEX * job.rows * job.length if job.train else 0  # and as many targets of a loss
    sizes: dict[str, Any] = {
        "param_bytes": params * stored,
        "gathered_bytes": gathered * computed,
        "gradient_bytes": gradients * stored,
        "optimizer_bytes": sum(piece.copies * piece.optimizer_bytes for piece in pieces),
        "recomputed_bytes": max((piece.ran.recomputed_bytes for piece in pieces), default=0),
        "kv_cache_bytes": sum(piece.copies * piece.ran.kv_cache_bytes for piece in pieces),
        "state_bytes": sum(piece.copies * piece.ran.state_bytes for piece in pieces),
        "loss_bytes": sum(piece.copies * piece.loss_bytes for piece in pieces),
        "embedding_bytes": sum(embedding_bytes(job, piece) for piece in pieces),
        "input_bytes": tokens * sum(p.part.first + (p.loss_bytes > 0) for p in pieces),
        "passing_bytes": max((passing_bytes(job, p) for p in pieces if p.part.layers), default=0),
        "step_bytes": updated * STEP_COPIES.get(job.optimizer, 0) * stored,
        "backward_gradient_bytes": there[0],
        "backward_activation_bytes": there[1],
    }
    return Kind(
        ranks=tuple(ranks),
        count=count,
        stages=tuple(stages),
        layers=sum(piece.copies for piece in pieces if piece.part.layers),
        params=params,
        active_params=active,
        by_role={role: by_role[role] for role in ROLES if role in by_role},
        gradients=gradients,
        activation_bytes=saved,
        micro_batches_kept=job.kept_at(stages[0]),
        collectives=(*sorted(worst, key=_order), *between),
        accumulates=accumulates,
        **sizes,
        **_at_worst(job, pieces, sizes, saved, _of_stage(job, stages[0], between)),
    )


def _of_stage(job: Job, stage: int, between: Sequence[Collective]) -> int:
    """Count what a schedule holds in training: all that is received, and what kept ones gave."""
    if not job.train:
        return 0
    received = sum(each.n_bytes * each.times for each in between if each.kind == "receive")
    given = (each.n_bytes for each in between if (each.kind, each.phase) == ("send", "forward"))
    return received + job.kept_at(stage) * sum(given)


def _at_worst(
    job: Job, pieces: Sequence[Piece], sizes: dict[str, int], saved: int | None, of_stage: int
) -> dict[str, Any]:
    """Find the worst moment of those that are counted, what may be there at most, and the peak.

    What FSDP2 holds of a unit: gathered tensors, and beside them three times as many bytes at most:
    what is gathered next, whole gradients, and what is scattered of the unit before.
    """
    always = ["param_bytes", "optimizer_bytes", "kv_cache_bytes", "state_bytes"]
    before = ["gradient_bytes"] if job.train and job.micro_batches > 1 else []
    stays = ["gathered_bytes"] if job.zero < 3 else []  # in the loss, all is given back
    at_work = [*always, "gathered_bytes"]
    named = {
        "blocks": [*at_work, "gradient_bytes", "activation_bytes", "recomputed_bytes"],
        "loss": [*always, *stays, *before, "activation_bytes", "loss_bytes"],
        "embedding": [*at_work, "gradient_bytes", "embedding_bytes"],
        "step": [*always, "gradient_bytes", "step_bytes"],
    }
    counted = {**sizes, "activation_bytes": saved or 0}
    moments = {name: {part: counted[part] for part in parts} for name, parts in named.items()}
    for part in ("gradient_bytes", "activation_bytes"):
        moments["blocks"][part] = sizes[f"backward_{part}"]
    for name in moments.keys() - {"loss"}:  # where they are among what is kept
        moments[name]["input_bytes"] = sizes["input_bytes"]
    totals = {name: sum(parts.values()) for name, parts in moments.items()}
    worst = max(totals, key=lambda name: totals[name])
    mesh, unit, even = job.mesh, 0, True
    alone = mesh.world == 1 or job.replicated
    if job.train and mesh.shard > 1 and not job.replicated:
        for piece in pieces:
            padded = [_padded(each, mesh) for each in piece.held]
            unit = max(unit, sum(n * d for n, d in padded) * DTYPE_BYTES[job.dtype])
            even &= all(n == each.shard for (n, _), each in zip(padded, piece.held, strict=True))
            even &= job.zero == 3 or all(
                n * d == prod(each.cut) for (n, d), each in zip(padded, piece.held, strict=True)
            )
    # of the logits a rank of tp has a part, all parts, and these in one; no log-softmax yet
    width = DTYPE_BYTES[job.dtype]
    logits = sizes["loss_bytes"] * width // (2 * max(FLOAT32, width))
    ends = max(sizes["loss_bytes"] // 4, (logits * 5 - sizes["loss_bytes"]) // 2)
    if alone and before:  # the gradient that is added to that of the micro-batches before
        of_tensors = (prod(each.cut) for piece in pieces for each in piece.held if each.trained)
        unit = max(of_tensors, default=0) * width
    more = unit if alone else 3 * unit
    bounds = {
        "blocks": totals["blocks"] + sizes["passing_bytes"] + more,
        "embedding": totals["embedding"] + more + 2 * sizes["embedding_bytes"] * (not alone),
        "loss": totals["loss"] + logits * (mesh.pp > 1),  # which a schedule has, too
        "ends": totals["loss"] - sizes["loss_bytes"] + ends + more,
        "step": totals["step"],
    }
    # buckets of DDP have the gradients once more
    buckets = sizes["gradient_bytes"] if job.train and job.zero < 2 and mesh.shard > 1 else 0
    most = max(*bounds.values(), *totals.values()) + buckets + of_stage
    exact = worst in ("loss", "step") or alone
    why = job.unfollowed or job.uncounted
    if not why and saved is None:
        why = "no formula counts what is kept"
    if not why and job.replicated and any(not t.trained for p in pieces for t in p.held):
        why = UNSEEN
    if not why and not (exact and even and most == totals[worst] + buckets):
        gathered = "" if alone else ", or FSDP2's gathered parameters,"
        why = f"what comes and goes in a block{gathered} may be more"
    at_peak = moments[worst] | ({"bucket_bytes": buckets} if buckets else {})
    return {
        "parts": moments[worst],
        "total_bytes": totals[worst],
        "most_bytes": most,
        "peak_bytes": None if why else totals[worst] + buckets,
        "peak_parts": None if why else at_peak,
        "peak_unknown": why,
    }


def _padded(each: Held, mesh: Mesh) -> tuple[int, int]:
    """Return the values of a share as FSDP2 gathers it, padded, and how many shares there are."""
    degree = mesh.expert_shard if each.expert else mesh.shard
    rows = each.cut[spread_axis(each.cut, degree) if each.expert else 0]
    return (prod(each.cut) // rows * -(-rows // degree) if rows else 0), degree


def passing_bytes(job: Job, piece: Piece) -> int:
    """Bound what comes and goes in the backward of a block: `PASSING` times what it keeps.

    And two more gradients of its largest stack of experts, which are summed expert by expert.
    """
    if not job.train:
        return 0
    experts = (prod(each.cut) for each in piece.held if len(each.cut) > 2)
    saved = piece.ran.recomputed_bytes or piece.saved_bytes
    return PASSING * saved + 2 * max(experts, default=0) * DTYPE_BYTES[job.dtype]


def embedding_bytes(job: Job, piece: Piece) -> int:
    """Count what is there beside gradients and inputs when the embedding's gradient is made.

    The gradient of what it gave, n·d, and the loss with its own; of a tied table also the
    embedding's gradient, and instead of the former the sum of that and of the head's if it is more.
    These are whole, in the type that is computed with.
    """
    tables = [each for each in piece.held if each.role == "embedding" and len(each.cut) == 2]
    if not (job.train and piece.part.first and tables):
        return 0
    table = max(tables, key=lambda each: prod(each.cut))
    width = DTYPE_BYTES[job.dtype]
    full, given = prod(table.cut) * width, job.rows * job.length * table.cut[1] * width
    scalars = 2 * max(FLOAT32, width)
    if not piece.part.last:
        return given + (scalars if job.mesh.pp == 1 else 0)
    of_rank = table.shard if job.zero >= 2 else prod(table.cut)
    return 2 * full - of_rank * DTYPE_BYTES[job.stored] + max(full, given) + scalars


def in_backward(pieces: Sequence[tuple[Piece, int]]) -> tuple[int, int]:
    """Count the gradients and saved activations that are there at once, as the backward goes
    through the blocks: bytes of each, at the worst moment of the two together.

    A block has its activations before its backward, and its gradients after; the one that is at
    work may have both. What stands after the blocks has its gradients by then, what stands before
    them its activations. So this is the most in whatever order the blocks stand, and exactly what
    is there where all are alike.

    Returns: bytes of gradients, bytes of activations.
    """
    gradients, saved, both = 0, 0, (0, 0)
    for piece, of_gradients in pieces:
        of_saved = piece.saved_bytes
        if not piece.part.layers:
            gradients += piece.copies * of_gradients * piece.part.last
            saved += piece.copies * of_saved * (not piece.part.last)
        elif of_saved >= of_gradients:
            saved += piece.copies * of_saved
            both = max(both, (of_gradients, 0), key=sum)
        else:
            gradients += piece.copies * of_gradients
            both = max(both, (0, of_saved), key=sum)
    return gradients + both[0], saved + both[1]


def _order(each: Collective) -> tuple[str, str, str, int]:
    return (each.phase, each.group, each.kind, -each.n_bytes)


def between_stages(job: Job, d_model: int, *, first: bool, last: bool) -> list[Collective]:
    """List what a stage sends to its neighbours and gets from them:
    hidden states, and their gradients.

    One tensor for each micro-batch, forward to the next stage and, in training, back to the one
    before. This is counted, not run: a schedule waits for its neighbours' answers.
    """
    message = job.rows * d_model * DTYPE_BYTES[job.dtype]
    spread = job.mesh.tp if job.sequence_parallel else 1
    machines, outside = span(job.mesh, "pp", job.per_machine)
    runs = job.passes | ({"backward": job.length} if job.train else {})
    return [
        Collective(
            phase=phase,
            kind=kind,
            group="pp",
            ranks=2,
            n_bytes=message * length // spread,
            times=job.micro_batches,
            machines=machines,
            outside=outside,
        )
        for phase, length in runs.items()
        for kind in ("send", "receive")
        # an end has nobody to send to or to get from
        if not (first if (kind == "send") == (phase == "backward") else last) and job.mesh.pp > 1
    ]


def often(job: Job, group: str) -> int:
    """Count how often a step does what one forward and backward does once.

    Once for each micro-batch; ZeRO 0 and 1 gather parameters and sum gradients once a step.
    """
    if job.train and group in ("dp", "copies") and job.zero < 2:
        return 1
    return job.micro_batches
