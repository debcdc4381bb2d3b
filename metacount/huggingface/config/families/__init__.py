"""The model types of transformers, a row each, in files of related ones; only those are loaded
that are looked through.
"""

from __future__ import annotations

from importlib import import_module

from metacount.huggingface.config.keys import HARMLESS, NEUTRAL
from metacount.huggingface.config.record import recorded
from metacount.huggingface.config.row import Family

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from metacount.files import Json
    from metacount.huggingface.config.row import Row

FILES = ("dense", "mixtures", "hybrids", "older", "encoders")


def _files() -> Iterator[dict[str, Row]]:
    for file in FILES:
        yield import_module(f"{__name__}.{file}").ROWS


def mapped_types() -> tuple[str, ...]:
    """List the model types of transformers that have a mapping."""
    return tuple(name for rows in _files() for name in rows)


def row_of(model_type: str) -> Row | None:
    """Find the row of a model type, if there is one."""
    return next((rows[model_type] for rows in _files() if model_type in rows), None)


def family_of(model_type: str) -> Family | None:
    """Find the mapping of a model type, if there is one."""
    row = row_of(model_type)
    return None if row is None else _family(row, recorded(model_type))


def _family(row: Row, record: Json) -> Family:
    ignored, reads = row.ignored.split(), row.reads.split()
    passed = (HARMLESS | NEUTRAL.keys() | {*ignored, "is_encoder_decoder"}) - {*reads}
    own = {key: value for key, value in record["defaults"].items() if key not in passed}
    defaults = {**own, **row.defaults}
    aliases = {name: key for name, key in record["aliases"].items() if key in defaults}
    return Family(
        parts=row.parts,
        classes={**record["classes"], **row.ends},
        defaults=defaults,
        aliases={**aliases, **row.aliases},
        ignored=tuple(ignored),
        kind=record["kind"],
    )
