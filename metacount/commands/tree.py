"""`metacount tree`: the module tree of a model."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.commands.options import add_json, add_model
from metacount.resolve import Model, find_any

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse

    from metacount.commands import Result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=False)
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    model = find_any(args.model, args.settings)
    prepare_for_torch()
    from metacount.measure.ours.tree import module_tree
    from metacount.views.tree import tree_text

    # of a config, transformers' own module: its names can be laid beside a checkpoint
    if model.source is not None:
        from metacount.huggingface.module.model import build_transformers

        module, choice = build_transformers(model.source.config)
        root, made_by = module_tree(module), f"transformers: {choice}"
    else:
        from metacount.modules.build import build

        root, made_by = module_tree(build(model.spec)), "reference"
    if args.json:
        changes = model.changes if isinstance(model, Model) else {}
        data = {"model": model.id, "name": model.name, "changes": changes}
        return json_text({**data, "source": made_by, "tree": root.to_dict(root.params)}), 0
    return tree_text(model, root, made_by), 0
