"""The other sizes at which a flow is run: of the same structure; sizes that differ still do."""

from __future__ import annotations

from itertools import combinations

import pytest
from helpers.release import daily, one_in

from metacount.catalog import entries
from metacount.check.sizes import free_sizes
from metacount.flow.letters import RUNS, STRUCTURE, letters_of_run, other_sizes
from metacount.spec import ModelSpec, Workload

SPECS = {one.id: one.spec() for one in entries() if one.sizes is not None}


def sides(spec: ModelSpec, workload: Workload) -> list[bool | None]:
    """Whether a window, and what an indexer chooses, are less than the sequence."""
    names = ("window", "index_top_k")
    reach = [getattr(spec, name) for name in names]
    return [None if n is None else n < workload.seq_len for n in reach]


@daily(3)
@pytest.mark.parametrize("name", one_in(2, SPECS))
@pytest.mark.parametrize("seq_len", [64, 300_000])
def test_the_structure_is_the_same(name: str, seq_len: int) -> None:
    spec, workload = SPECS[name], Workload(batch_size=2, seq_len=seq_len)
    others = other_sizes(spec, workload, decode=False)
    assert len(others) == RUNS
    for other in others:
        for size in free_sizes(spec):
            now, then = getattr(spec, size), getattr(other.spec, size)
            assert (now == 1) == (then == 1), size
            assert now == then or size not in STRUCTURE, size
        assert (spec.n_kv_heads == spec.n_heads) == (other.spec.n_kv_heads == other.spec.n_heads)
        assert sides(other.spec, other.workload) == sides(spec, workload)
        here = letters_of_run(spec, workload, decode=False)
        assert set(other.letters) == set(here)
        for one, two in combinations(here, 2):  # one chunk of all tokens stays one chunk
            assert here[one] == here[two] or other.letters[one] != other.letters[two], (one, two)


def test_both_sides_of_a_window_are_met() -> None:
    met = {
        side
        for spec in SPECS.values()
        for seq_len in (64, 300_000)
        for side in sides(spec, Workload(seq_len=seq_len))
    }
    assert met == {None, True, False}
