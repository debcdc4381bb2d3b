"""`metacount tree`: the module tree of a model."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch, table_text
from metacount.commands.options import (
    add_formats,
    add_model,
    add_workload,
    request_of,
    whole_number,
)
from metacount.errors import InputError, nearest, shown
from metacount.resolve import Model, find_any
from metacount.spec.model import left_out

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from metacount.views.tree_columns import COLUMNS

    add_model(parser, several=False)
    parser.add_argument(
        "--only", metavar="PATH", help="a module by its path or the end of it: layers.0.self_attn"
    )
    parser.add_argument(
        "--depth", metavar="N", type=whole_number, help="levels below the first row (default all)"
    )
    parser.add_argument(
        "--columns", metavar="NAMES", help=f"some of {', '.join(COLUMNS)}, with commas between them"
    )
    add_formats(parser)
    add_workload(parser)


def run(args: argparse.Namespace) -> Result:
    if args.depth is not None and args.depth < 0:
        raise InputError(f"--depth must be 0 or more: got {args.depth}; choose 1 or 2")
    chosen = None if args.columns is None else chosen_columns(args.columns)
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.api import tree
    from metacount.views.tree import Shown, tree_data, tree_table, tree_text

    wanted = set(chosen or ())
    found = tree(
        model,
        request_of(args),
        only=args.only,
        flops="flops" in wanted,
        active="active" in wanted,
    )
    forms = None
    if "formula" in wanted:
        if model.source is not None or not isinstance(model, Model):
            raise InputError(
                "--columns formula: the rows of transformers' own modules have no formula here; "
                "choose a model of the catalog"
            )
        from metacount.views.tree_forms import Forms

        forms = Forms(model.spec)
    asked = Shown(
        root=found.root,
        depth=args.depth,
        chosen=chosen,
        made_by=found.made_by,
        run=found.run,
        forms=forms,
    )
    if args.table:
        return table_text(args.table, tree_table(asked)), 0
    if args.json:
        changes = model.changes if isinstance(model, Model) else {}
        apart = left_out(model.spec) if isinstance(model, Model) else ()
        data = {"model": model.id, "name": model.name, "changes": changes, "left_out": list(apart)}
        return json_text({**data, "source": found.made_by, "tree": tree_data(asked)}), 0
    return tree_text(model, asked), 0


def chosen_columns(text: str) -> tuple[str, ...]:
    """Read the columns an option names, in its order; the formula, which may need lines, last."""
    from metacount.views.tree_columns import COLUMNS

    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in COLUMNS:
            close = nearest(name, COLUMNS, f"choose some of {', '.join(COLUMNS)}")
            raise InputError(f"--columns: '{shown(name)}' is no column of a tree; {close}")
        if names.count(name) > 1:
            raise InputError(f"--columns: {name} is given twice; leave one out")
    return tuple(sorted(names, key=lambda name: name == "formula"))
