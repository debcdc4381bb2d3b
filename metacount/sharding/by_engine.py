"""Measures a whole mesh: one rank of each kind, each part of the model once."""

from __future__ import annotations

from collections import Counter

from metacount.sharding.engine.optimizer import state_bytes
from metacount.sharding.engine.traffic import Seen
from metacount.sharding.engine.world import fake_world
from metacount.sharding.measured import Ran, place, serve_once, train_once
from metacount.sharding.mesh import breaks, kinds, ranges, stage_layers
from metacount.sharding.of_reference import Part, Whole
from metacount.sharding.plan import Plan, for_mesh
from metacount.sharding.result import Held, Job, Kind, Piece, between_stages, kind_from
from metacount.spec import ModelSpec
from metacount.tensors import DTYPES


def measured_kinds(spec: ModelSpec, job: Job, plan: Plan) -> list[Kind]:
    """Every kind of rank of a mesh, from a model that is instantiated and run in a fake world."""
    return Measuring(spec, job, plan).kinds()


class Measuring:
    """One model on one mesh: its parts, what was measured of each, and where."""

    def __init__(self, spec: ModelSpec, job: Job, plan: Plan) -> None:
        self.job, self.spec, self.mesh = job, spec, job.mesh
        self.styles = for_mesh(plan, job.mesh)
        self.layers = stage_layers(spec.last_stack.n_layers, job.mesh.pp, plan.layers)
        self.whole = Whole(spec, job.stored)
        self.parts = self.whole.parts(job.mesh.pp)
        self._held: dict[int, list[list[Held]]] = {}
        self._state: dict[tuple[int, ...], int] = {}

    def kinds(self) -> list[Kind]:
        """Every kind of rank, the stages in order."""
        groups, found = self._groups(), []
        ran = [self._run(part) for part in self.parts]
        for (copies, first, last), stages in self._stages().items():
            between = between_stages(self.job, self.spec.d_model, first=first, last=last)
            for ranks in groups:
                pieces = [self._piece(i, n, ranks[0], *ran[i]) for i, n in enumerate(copies) if n]
                own = [stage * self.mesh.stage_ranks + rank for stage in stages for rank in ranks]
                found.append(kind_from(self.job, list(ranges(own)), stages, len(own), pieces,
                                       between))  # fmt: skip
        return found

    def _stages(self) -> dict[tuple[tuple[int, ...], bool, bool], list[int]]:
        """Stages that have equally many of each part and are alike in being first and last."""
        found: dict[tuple[tuple[int, ...], bool, bool], list[int]] = {}
        start = 0
        for stage, n in enumerate(self.layers):
            first, last = stage == 0, stage == self.mesh.pp - 1
            own = range(start, start + n)
            copies = tuple(part.copies(own, first=first, last=last) for part in self.parts)
            found.setdefault((copies, first, last), []).append(stage)
            start += n
        return found

    def _groups(self) -> list[list[int]]:
        """Ranks of the first stage that hold equal parts, by where torch's cuts fall."""
        mesh = self.mesh
        held = [each for part in self._held_at(0) for each in part]
        cuts = [each.whole[axis] for each in held for axis in range(len(each.whole))
                if each.cut[axis] != each.whole[axis] and not each.expert]  # fmt: skip
        tensor = breaks(cuts, mesh.tp)
        if not self.job.train or not self.job.zero:
            return list(kinds(mesh, [0], tensor, [0]).values())
        shard, copy = {0}, {0}
        for index in tensor:
            for each in (each for part in self._held_at(index) for each in part):
                size, degree = each.cut[0], mesh.expert_shard if each.expert else mesh.shard
                (copy if each.expert else shard).update(breaks([size], degree))
        return list(kinds(mesh, sorted(shard), tensor, sorted(copy)).values())

    def _held_at(self, rank: int) -> list[list[Held]]:
        """What a rank of the first stage holds of each part."""
        if rank not in self._held:
            with fake_world(self.mesh, rank, self.job.zero) as world:
                self._held[rank] = [
                    place(self.whole.part(part), self.styles, world, self.job)
                    for part in self.parts
                ]
        return self._held[rank]

    def _piece(self, part: int, copies: int, rank: int, once: Counter[tuple[str, Seen]],
               cache: int) -> Piece:  # fmt: skip
        held = self._held_at(rank)[part]
        return Piece(
            copies=copies,
            layer=bool(self.parts[part].layers),
            held=tuple(held),
            collectives={(phase, *seen): times for (phase, seen), times in once.items()},
            state_bytes=self._state_of(tuple(each.shard for each in held)),
            kv_cache_bytes=cache,
        )

    def _state_of(self, sizes: tuple[int, ...]) -> int:
        if not self.job.train:
            return 0
        if sizes not in self._state:
            dtype = DTYPES[self.job.stored]
            self._state[sizes] = state_bytes(self.job.optimizer, sizes, dtype)
        return self._state[sizes]

    def _run(self, part: Part) -> tuple[Counter[tuple[str, Seen]], int]:
        """What one copy of a part sends, by phase, and the bytes that it keeps in a cache."""
        job = self.job
        with fake_world(self.mesh, 0, job.zero) as world:
            model = self.whole.part(part)
            if job.train:
                ran = train_once(model, self.styles, world, job)
                return phases(forward=ran.forward, backward=ran.backward), 0
            prompt, token = serve_once(model, self.styles, world, job)
            return phases(prompt=prompt.forward, token=token.forward), prompt.kv_cache_bytes


def phases(**seen: Counter[Seen]) -> Counter[tuple[str, Seen]]:
    """What was seen in each phase, together."""
    return Counter({(phase, each): times for phase, found in seen.items()
                    for each, times in found.items()})  # fmt: skip


__all__ = ["Measuring", "Ran", "measured_kinds"]
