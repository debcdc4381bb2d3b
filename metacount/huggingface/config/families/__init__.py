"""The model types of transformers, a row each, in files of related ones; the record says which is
where, and only that is loaded.
"""

from __future__ import annotations

from importlib import import_module

from metacount.huggingface.config.keys import HARMLESS, NEUTRAL
from metacount.huggingface.config.record import recorded, recorded_types
from metacount.huggingface.config.row import Family

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.huggingface.config.row import Row

FILES = ("dense", "mixtures", "hybrids", "older", "encoders")


def rows_of(file: str) -> dict[str, Row]:
    """Load the rows of one file."""
    rows: dict[str, Row] = import_module(f"{__name__}.{file}").ROWS
    return rows


def mapped_types() -> tuple[str, ...]:
    """List the model types of transformers that have a mapping."""
    return recorded_types()


def family_of(model_type: str) -> Family | None:
    """Find the mapping of a model type, if there is one."""
    if model_type not in recorded_types():
        return None
    record = recorded(model_type)
    return _family(rows_of(record["file"])[model_type], record)


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
