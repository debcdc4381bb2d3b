"""Which ranks are alike, and where groups lie on machines, counted rank by rank."""

from __future__ import annotations

from metacount.sharding.mesh import Mesh, kinds, parse_mesh, span


def test_kinds_are_those_that_are_found_rank_by_rank() -> None:
    def last(found: list[int], index: int) -> int:
        return max(i for i in found if i <= index)

    for mesh in (Mesh(dp=6, tp=4, ep=8), Mesh(dp=5, tp=3, cp=2, ep=2), Mesh(dp=3, tp=4, ep=6)):
        for shard, tensor, copy in (([0], [0], [0]), ([0, 2], [0, 2], [0, 1]), ([0, 1], [0], [0])):
            expected: dict[tuple[int, int, int], list[int]] = {}
            for rank in range(mesh.stage_ranks):
                at = mesh.place(rank)
                key = last(shard, at.shard), last(tensor, at.tensor), last(copy, at.copy)
                expected.setdefault(key, []).append(rank)
            assert list(kinds(mesh, shard, tensor, copy).items()) == list(expected.items())


def test_groups_on_machines_are_those_that_are_counted_rank_by_rank() -> None:
    for mesh in ("dp=4,tp=8", "dp=4,tp=6", "dp=3,tp=2,pp=4", "dp=8,tp=2,ep=4", "dp=16,ep=8,pp=2"):
        made = parse_mesh(mesh)
        places = [made.place(rank) for rank in range(made.world)]
        alike = {
            "tp": lambda p: (p.stage, p.shard),
            "dp": lambda p: (p.stage, p.tensor),
            "ep": lambda p: (p.stage, p.copy),
            "copies": lambda p: (p.stage, p.expert),
        }
        for group, key in alike.items():
            for per_machine in (1, 2, 3, 8, 100):
                groups: dict[object, list[int]] = {}
                for place in places:
                    groups.setdefault(key(place), []).append(place.rank // per_machine)
                machines = max(len(set(found)) for found in groups.values())
                outside = max(
                    len(found) - found.count(one) for found in groups.values() for one in found
                )
                assert span(made, group, per_machine) == (machines, outside)
        ahead = [(p.rank, p.rank + made.stage_ranks) for p in places if p.stage + 1 < made.pp]
        if ahead:
            crosses = max(len({a // 8, b // 8}) for a, b in ahead)
            assert span(made, "pp", 8)[0] == crosses
