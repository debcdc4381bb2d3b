"""`metacount models`: the catalog, or the fields of a spec."""

from __future__ import annotations

import sys

from metacount.commands import json_text, table_text
from metacount.commands.options import add_columns, add_formats, refuse_columns
from metacount.errors import InputError, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.catalog import CatalogEntry
    from metacount.commands import Result
    from metacount.views.columns import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        default="",
        help="only models whose id, name or family contains TEXT",
    )
    parser.add_argument("--family", metavar="NAME", help="only models of this family")
    parser.add_argument(
        "--fields",
        action="store_true",
        help="print the fields that --set takes, with their meaning",
    )
    add_columns(parser)
    add_formats(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount import catalog
    from metacount.formulas.model import params

    if args.columns:
        from metacount.views.columns import checked

        checked(args.columns)
    if args.fields:
        refuse_columns(args, "--fields")
        from metacount.views.fields import field_rows, fields_table, fields_text

        if args.table:
            return table_text(args.table, fields_table()), 0
        return (json_text(field_rows()) if args.json else fields_text()), 0
    entries = catalog.entries()
    if args.family is not None:
        families = {entry.family.lower(): entry.family for entry in entries}
        if args.family.lower() not in families:
            from metacount.errors import nearest

            known = nearest(args.family, families, f"choose one of {', '.join(families.values())}")
            raise InputError(f"--family '{shown(args.family)}' is not in the catalog; {known}")
        entries = tuple(e for e in entries if e.family.lower() == args.family.lower())
    text = args.text.lower()
    entries = tuple(e for e in entries if text in f"{e.id}\n{e.name}\n{e.family}".lower())
    if not entries:
        print("metacount: no model of the catalog matches", file=sys.stderr)
    if args.columns:
        return _columns(args, entries), 0
    counted = [(e, params(e.spec()) if e.sizes is not None else None) for e in entries]
    from metacount.views.models import models_data, models_table, models_text

    if args.table:
        return table_text(args.table, models_table(counted)), 0
    if args.json:
        return json_text(models_data(counted)), 0
    return models_text(counted) if counted else "", 0


def _columns(args: argparse.Namespace, entries: Sequence[CatalogEntry]) -> str:
    """Write the chosen columns of the catalog, counted at the default workload."""
    from metacount.spec import Request
    from metacount.textbook.count import count
    from metacount.views.columns import columns_data, columns_table, columns_text

    rows: list[Row] = []
    for entry in entries:
        spec = None if entry.sizes is None else entry.spec()
        data = None if spec is None else count(spec, Request()).to_dict()
        rows.append((entry.id, entry.name, spec, data))
    if args.json:
        return json_text(columns_data(args.columns, rows))
    if args.table:
        return table_text(args.table, columns_table(args.columns, rows))
    return columns_text(args.columns, rows) if rows else ""
