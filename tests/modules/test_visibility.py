"""Who sees whom: `Visibility.keep` against sets of positions written out by range."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from metacount.modules import Visibility

CPU = torch.device("cpu")


def positions_seen(query: int, sees: Visibility, end: int) -> set[int]:
    """Positions below `end` that the query may see, from ranges instead of comparisons."""
    w = sees.window
    if sees.kind == "bidirectional":
        return set(range(end) if w is None else range(max(0, query - w // 2), query + w // 2 + 1))
    if sees.kind == "prefix":
        return {*range(query + 1), *range(sees.prefix_len)}
    if w is None:
        return set(range(query + 1))
    first = query // w * w if sees.chunked else max(0, query - w + 1)
    return set(range(first, query + 1))


CASES = [
    {"kind": "causal"},
    {"kind": "bidirectional"},
    {"kind": "bidirectional", "window": 2},
    {"kind": "bidirectional", "window": 5},
    {"kind": "bidirectional", "window": 6},
    {"kind": "prefix", "prefix_len": 0},
    {"kind": "prefix", "prefix_len": 5},
    *({"kind": "causal", "window": w, "chunked": c} for w in (2, 3, 5, 40) for c in (False, True)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_keep_is_the_brute_force_set(case: dict[str, object]) -> None:
    compared = 0
    for query_start, n_queries, key_start in product((0, 1, 4, 7), (1, 3, 11), (0, 1, 2, 4)):
        end = query_start + n_queries  # keys up to the last query
        if key_start > query_start:
            continue
        sees = Visibility(
            n_queries=n_queries,
            n_keys=end - key_start,
            query_start=query_start,
            key_start=key_start,
            **case,  # type: ignore[arg-type]
        )
        keep = sees.keep(CPU)
        assert keep.shape == (n_queries, end - key_start)
        for row, query in enumerate(range(query_start, end)):
            seen = {key_start + t for t, kept in enumerate(keep[row].tolist()) if kept}
            assert seen == positions_seen(query, sees, end) & set(range(key_start, end))
            assert query in seen  # so that no row is masked altogether
            compared += 1
        assert torch.equal(sees.keep(CPU, slice(1, 3)), keep[1:3])
    assert compared == 165  # (1 + 3 + 11) × the 11 pairs with key_start <= query_start
