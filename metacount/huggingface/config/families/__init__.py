"""The model types of transformers, a row each, in files of related ones; the record says which is
where, and only that is loaded.
"""

from __future__ import annotations

from importlib import import_module

from metacount.huggingface.config.keys import HARMLESS, NEUTRAL
from metacount.huggingface.config.parts import Family
from metacount.huggingface.config.record import mapped_types, recorded, recorded_texts

FILES = ("dense", "mixtures", "hybrids", "older", "encoders")


def rows_of(file: str) -> dict[str, Family]:
    """Load the rows of one file."""
    rows: dict[str, Family] = import_module(f"{__name__}.{file}").ROWS
    return rows


def family_of(model_type: str, text: str = "") -> Family | None:
    """Find the mapping of a model type, if there is one; with the defaults of a type of `text`."""
    if model_type not in mapped_types():
        return None
    record = recorded(model_type)
    row = rows_of(record["file"])[model_type]
    passed = (HARMLESS | NEUTRAL.keys() | {*row.ignored, "is_encoder_decoder"}) - {*row.reads}
    own = {key: value for key, value in record["defaults"].items() if key not in passed}
    defaults = {**own, **row.defaults}
    aliases = {name: key for name, key in record["aliases"].items() if key in defaults}
    return Family(
        parts=row.parts,
        classes={**record["classes"], **row.classes},
        defaults={**defaults, **recorded_texts().get(text, {})},
        aliases={**aliases, **row.aliases},
        ignored=row.ignored,
        kind=record["kind"],
    )
