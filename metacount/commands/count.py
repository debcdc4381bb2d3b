"""`metacount count`: parameters, FLOPs and KV cache of one model or of several."""

from __future__ import annotations

from metacount.commands import json_text, prepare_for_torch
from metacount.options import add_json, add_model, add_workload, workload_of
from metacount.resolve import Foreign, Model, Source, find_any, parse_settings

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from metacount.commands import Result
    from metacount.spec import Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, several=True)
    add_workload(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> Result:
    from metacount.figures import count

    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    workload = workload_of(args)
    found = [find_any(argument, args.settings) for argument in args.model]
    if any(isinstance(model, Foreign) for model in found):
        return _count_measured(found, workload, args.json)
    models = [model for model in found if isinstance(model, Model)]
    results = [count(model.spec, workload) for model in models]
    if args.json:
        data = [_data(model, result) for model, result in zip(models, results, strict=True)]
        return json_text(data if len(data) > 1 else data[0]), 0
    from metacount.views.table import comparison_text, count_text

    if len(models) == 1:
        return count_text(models[0], results[0]), 0
    return comparison_text(models, results), 0


def _count_measured(found: Sequence[Model | Foreign], workload: Workload, as_json: bool) -> Result:
    """Models among which at least one has no formula: that one is measured with transformers."""
    from metacount.figures import count

    prepare_for_torch()
    from metacount.views.foreign import foreign_data, foreign_text
    from metacount.views.table import count_text
    from metacount.witnesses import outside_witnesses

    data: list[dict[str, Any]] = []
    texts: list[str] = []
    for model in found:
        if isinstance(model, Model):
            result = count(model.spec, workload)
            data.append(_data(model, result))
            texts.append(count_text(model, result))
            continue
        (said, *_), _ = outside_witnesses(Source(config=model.source.config), workload)
        data.append(foreign_data(model, said, workload))
        texts.append(foreign_text(model, said, workload))
    return (json_text(data if len(data) > 1 else data[0]) if as_json else "\n".join(texts)), 0


def _data(model: Any, result: Any) -> dict[str, Any]:
    inferred = list(model.entry.inferred) if model.entry is not None else []
    return {
        "model": model.id,
        "name": model.name,
        "changes": model.changes,
        **result.to_dict(),
        "inferred": inferred,
        "notes": list(model.notes),
    }
