"""Meshes: what they make, which ranks are alike, and what is no mesh."""

from __future__ import annotations

import pytest

from metacount.errors import InputError
from metacount.sharding.mesh import (
    Mesh,
    Span,
    breaks,
    kinds,
    parse_mesh,
    ranges,
    span,
    stage_layers,
)


def test_a_mesh_multiplies_out() -> None:
    mesh = parse_mesh("dp=64, tp=8,pp=4,ep=16,cp=2")
    assert (mesh.world, mesh.stage_ranks, mesh.shard, mesh.expert_shard) == (4096, 1024, 128, 64)
    assert str(mesh) == "dp=64,tp=8,pp=4,ep=16,cp=2"
    assert str(Mesh()) == "dp=1"


def test_every_rank_has_a_place_of_its_own() -> None:
    mesh = Mesh(dp=3, tp=2, pp=5, ep=6, cp=2)
    places = [mesh.place(rank) for rank in range(mesh.world)]
    assert len({(at.stage, at.shard, at.tensor) for at in places}) == mesh.world == 60
    assert len({(at.stage, at.copy, at.expert) for at in places}) == mesh.world
    # neighbours: first the parts of a matrix, then the rest of the stage
    assert [places[rank].tensor for rank in range(4)] == [0, 1, 0, 1]
    assert [places[rank].expert for rank in range(7)] == [0, 1, 2, 3, 4, 5, 0]
    assert {at.stage for at in places[12:24]} == {1}


@pytest.mark.parametrize(
    ("text", "world", "line"),
    [
        ("dp=8,tp=8", 100, "100"),
        ("dp=8,tq=8", None, "'tq'"),
        ("dp=8,dp=4", None, "gives dp twice"),
        ("dp", None, "dp"),
        ("dp=-1", None, "dp"),
        ("dp=0", None, "dp"),
        (
            "dp=4,ep=3",
            None,
            "ep",
        ),
        ("dp=9999,tp=999", None, "has 9989001 ranks"),
        ("", None, "no degree ''"),
    ],
)
def test_what_is_no_mesh_is_one_line(text: str, world: int | None, line: str) -> None:
    with pytest.raises(InputError, match=line):
        parse_mesh(text, world)


def test_kinds_are_all_the_ranks_of_a_stage_once() -> None:
    mesh = Mesh(dp=6, tp=4, ep=8)
    found = kinds(mesh, [0, 3], [0, 2], [0, 2])
    assert sorted(rank for ranks in found.values() for rank in ranks) == list(range(24))
    # rank 17 is share 4 of 6, part 1 of 4, and of the third copy of the experts
    assert 17 in found[3, 0, 2]


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


def test_stages_have_all_layers() -> None:
    for n_layers in range(1, 20):
        for pp in range(1, n_layers + 1):
            layers = stage_layers(n_layers, pp)
            assert (sum(layers), len(layers)) == (n_layers, pp)
            assert max(layers) - min(layers) <= 1
    with pytest.raises(InputError, match="pp"):
        stage_layers(3, 4)
    with pytest.raises(InputError, match="3 in all: got"):
        stage_layers(3, 2, [1, 1])


def test_ranges_are_the_ranks_again() -> None:
    ranks = [0, 2, 4, 5, 6, 7, 20, 30, 31]
    again = [r for a, b, step in ranges(ranks) for r in range(a, b + 1, step)]
    assert again == ranks


def test_breaks_are_where_the_pieces_change() -> None:
    for size in range(1, 30):
        for degree in range(1, 12):
            each = -(-size // degree)
            held = [max(0, min(each, size - each * i)) for i in range(degree)]
            changes = [0] + [i for i in range(1, degree) if held[i] != held[i - 1]]
            assert set(changes) <= set(breaks([size], degree))


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
                assert span(made, group, per_machine) == Span(machines=machines, outside=outside)
        ahead = [(p.rank, p.rank + made.stage_ranks) for p in places if p.stage + 1 < made.pp]
        if ahead:
            crosses = max(len({a // 8, b // 8}) for a, b in ahead)
            assert span(made, "pp", 8).machines == crosses
