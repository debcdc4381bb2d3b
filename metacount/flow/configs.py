"""Other sizes of a config of transformers': which of its fields have letters, and their values."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from metacount.flow.sizes import COUNTS, SMALL, STRUCTURE, WIDTHS
from metacount.measure.flow.letters import prime_factors
from metacount.spec import ModelSpec, legend
from metacount.tracing.run.build import size_values, with_fields

if TYPE_CHECKING:
    from metacount.files import Json

LARGE = ("vocab_size", "n_positions")  # above what they are: other numbers of a config point there
KEPT = STRUCTURE | {"window", "n_buckets", "n_token_types", "n_query_positions"}
MULTIPLE = 8  # of every width: grouped products want rows of 16 bytes, rotations even widths


def lettered_fields(config: Json, spec: ModelSpec | None) -> dict[str, tuple[str, int]]:
    """Return the config's field and its value under our name of each field that has a letter.

    Where a spelling may mean two of our sizes, the spec decides, or the first is taken.
    """
    found: dict[str, tuple[str, int]] = {}
    for field, value in size_values(config).items():
        known = legend.ours(field.rpartition(".")[2])
        names = [
            name
            for name in known
            if name not in KEPT and (spec is None or getattr(spec, name, None) == value)
        ]
        if "n_kv_heads" in known:  # of a latent too, whose spec has none
            names = ["n_kv_heads"]
        if names and names[0] not in found:
            found[names[0]] = field, value
    keys, heads = found.get("n_kv_heads"), found.get("n_heads")
    if keys is not None and heads is not None and keys[1] == heads[1]:
        # as many stays as many; both fields are set, one has the letter
        found["n_kv_heads"] = keys[0], -1
    return found


def letters_of(fields: dict[str, tuple[str, int]]) -> dict[str, int]:
    """Return the value of each letter."""
    return {legend.by_name(name).letter: value for name, (_, value) in fields.items() if value > 0}


def other_config(
    config: Json, fields: dict[str, tuple[str, int]], n: int
) -> tuple[Json, dict[str, int]]:
    """Return the config at the `n`th other sizes, and the values of its letters there."""
    counts, widths = iter(COUNTS[n]), iter(WIDTHS[n])
    heads, shared, experts = next(counts), next(counts), next(counts)
    if fields.get("n_kv_heads", ("", -1))[1] > 0:
        heads *= shared
    values: dict[str, int] = {}
    for name, (_, value) in fields.items():
        if name == "n_heads":
            values[name] = heads
        elif name == "n_kv_heads":
            values[name] = shared if value > 0 else heads
        elif name == "n_experts":
            values[name] = experts * (SMALL["n_groups"][n] if "n_groups" in fields else 1)
        elif name in SMALL:
            values[name] = SMALL[name][n]
        elif name in LARGE:
            values[name] = next(p for p in count(value + 97 * (n + 1)) if prime_factors(p) == {p})
        else:
            values[name] = next(widths) * MULTIPLE
    if "d_model" in values:  # the heads fit into it
        values["d_model"] *= values.get("n_heads", 1)
    changed = with_fields(config, {fields[name][0]: number for name, number in values.items()})
    return changed, letters_of(
        {
            name: (field, values[name] if value > 0 else -1)
            for name, (field, value) in fields.items()
        }
    )
