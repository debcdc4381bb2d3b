"""Measures a whole mesh: one rank of each kind, each part of the model once."""

from __future__ import annotations

from collections import Counter

from metacount.frozen import frozen
from metacount.measure.torch_private import forget_ranks
from metacount.sharding.adding import Piece, between_stages, kind_from
from metacount.sharding.engine.alike import alike, tensor_breaks
from metacount.sharding.engine.optimizer import state_bytes
from metacount.sharding.engine.traffic import Seen
from metacount.sharding.engine.world import fake_world, only_new_garbage
from metacount.sharding.mesh import ranges
from metacount.sharding.plan import Plan, for_mesh, layers_of_stages
from metacount.sharding.reference.parts import Whole
from metacount.sharding.reference.run import place, serve_once, train_once
from metacount.sharding.result import Held, Job, Kind
from metacount.spec import ModelSpec
from metacount.tensors import DTYPES


def measured_kinds(spec: ModelSpec, job: Job, plan: Plan) -> list[Kind]:
    """Measure every kind of rank of a mesh,
    on a model that is instantiated and run in a fake world.
    """
    import warnings

    forget_ranks()
    try:
        with warnings.catch_warnings(), only_new_garbage():
            warnings.simplefilter("ignore")  # torch's advice is for those who train
            return Measuring(spec, job, plan).kinds()
    finally:
        forget_ranks()


class Measuring:
    """One model on one mesh: its parts, what was measured of each, and where."""

    def __init__(self, spec: ModelSpec, job: Job, plan: Plan) -> None:
        self.job, self.spec, self.mesh = job, spec, job.mesh
        self.styles = for_mesh(plan, job.mesh)
        self.layers = layers_of_stages(spec, job.mesh, plan)
        self.whole = Whole(spec, job.stored)
        self.parts = self.whole.parts(job.mesh.pp)
        self._held: dict[int, list[list[Held]]] = {}
        self._ran: dict[tuple[int, int], Once] = {}
        self.tensor, self._at = [0], 0
        self._state: dict[tuple[int, ...], int] = {}

    def kinds(self) -> list[Kind]:
        """Measure every kind of rank, the stages in order."""
        groups, found, per_stage = self._groups(), [], self.mesh.stage_ranks
        for tensor in self.tensor:  # one rank after the other
            for part in range(len(self.parts)):
                self._run(part, tensor)
        for (copies, first, last, _), stages in self._stages().items():
            between = between_stages(self.job, self.spec.d_model, first=first, last=last)
            for ranks in groups:
                pieces = [self._piece(i, n, ranks[0]) for i, n in enumerate(copies) if n]
                own = [stage * per_stage + rank for stage in stages for rank in ranks]
                found.append(
                    kind_from(self.job, list(ranges(own)), stages, len(own), pieces, between)
                )
        return found

    def _stages(self) -> dict[tuple[tuple[int, ...], bool, bool, int], list[int]]:
        """Group the stages that have equally many of each part and keep equally many micro-batches.

        And that are alike in being first and last.
        """
        found: dict[tuple[tuple[int, ...], bool, bool, int], list[int]] = {}
        start = 0
        for stage, n in enumerate(self.layers):
            first, last = stage == 0, stage == self.mesh.pp - 1
            own = range(start, start + n)
            copies = tuple(part.copies(own, first=first, last=last) for part in self.parts)
            found.setdefault((copies, first, last, self.job.kept_at(stage)), []).append(stage)
            start += n
        return found

    def _groups(self) -> list[list[int]]:
        """Group the ranks of the first stage that hold equal parts, by where torch's cuts fall."""
        job = self.job
        more = job.token_counts if self.mesh.ep > 1 else []
        self.tensor = tensor_breaks(self._flat(0), self.mesh, more)
        return alike(self._flat, job, self.tensor)

    def _flat(self, rank: int) -> list[Held]:
        return [each for part in self._held_at(rank) for each in part]

    def _held_at(self, rank: int) -> list[list[Held]]:
        """Return what a rank of the first stage holds of each part."""
        if rank not in self._held:
            with fake_world(self.mesh, rank, self.job.zero) as world:
                self._held[rank] = [
                    place(self.whole.part(part), self.styles, world, self.job)
                    for part in self.parts
                ]
        return self._held[rank]

    def _piece(self, part: int, copies: int, rank: int) -> Piece:
        held = self._held_at(rank)[part]
        once = self._run(part, self.mesh.place(rank).tensor)
        return Piece(
            copies=copies,
            layer=bool(self.parts[part].layers),
            held=tuple(held),
            collectives={(phase, *seen): times for (phase, seen), times in once.sent.items()},
            optimizer_bytes=self._state_of(tuple(each.shard for each in held if each.trained)),
            kv_cache_bytes=once.kv_cache_bytes,
            state_bytes=once.state_bytes,
            activation_bytes=once.activation_bytes,
            recomputed_bytes=once.recomputed_bytes,
            loss_bytes=(
                self.job.loss_bytes(self.spec.vocab_size or 0)
                if self.parts[part].last and self.spec.head
                else 0
            ),
        )

    def _state_of(self, sizes: tuple[int, ...]) -> int:
        if not self.job.train:
            return 0
        if sizes not in self._state:
            dtype = DTYPES[self.job.stored]
            self._state[sizes] = state_bytes(self.job.optimizer, sizes, dtype)
        return self._state[sizes]

    def _run(self, part: int, tensor: int) -> Once:
        """Measure what one copy of a part sends and keeps."""
        key = part, max(i for i in self.tensor if i <= tensor)
        if key not in self._ran:
            self._ran[key] = self._run_at(*key)
        return self._ran[key]

    def _run_at(self, part: int, rank: int) -> Once:
        job = self.job
        if rank != self._at:
            forget_ranks()
            self._at = rank
        with fake_world(self.mesh, rank, job.zero) as world:
            model = self.whole.part(self.parts[part])
            if job.train:
                ran = train_once(model, self.styles, world, job)
                return Once(
                    sent=phases(forward=ran.forward, backward=ran.backward),
                    activation_bytes=ran.activation_bytes,
                    recomputed_bytes=ran.recomputed_bytes,
                )
            served = serve_once(model, self.styles, world, job)
            first = next(iter(served.values()))
            return Once(
                sent=phases(**{phase: ran.forward for phase, ran in served.items()}),
                kv_cache_bytes=first.kv_cache_bytes,
                state_bytes=first.state_bytes,
            )


@frozen
class Once:
    """What one copy of a part sends, by phase, and the bytes that it keeps."""

    sent: Counter[tuple[str, Seen]]
    kv_cache_bytes: int = 0
    state_bytes: int = 0
    activation_bytes: int = 0
    recomputed_bytes: int = 0


def phases(**seen: Counter[Seen]) -> Counter[tuple[str, Seen]]:
    """Join what was seen in each phase into one count."""
    return Counter(
        {(phase, each): times for phase, found in seen.items() for each, times in found.items()}
    )
