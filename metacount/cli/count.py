"""`metacount count`: parameters, FLOPs and KV cache of one model or of several."""

from __future__ import annotations

import os

from metacount import units
from metacount.catalog import compare_published
from metacount.cli import columns
from metacount.cli.answer import Answer, Pieces, prepare_for_torch
from metacount.cli.layout import WIDEST_TEXT, bold, paragraph
from metacount.cli.models import compared, published_notes
from metacount.cli.options import (
    DEVICE,
    FORMATS,
    INPUT,
    INPUT_SHOWN,
    MODELS,
    OVER,
    SETTINGS,
    WORKLOAD,
    flag,
    option,
    own_module,
    request_of,
    whole_number,
)
from metacount.cli.report import Grid, Lines, Notes, Share, Text, title
from metacount.errors import InputError, shown
from metacount.figures import COUNTED, FIGURES, OF_MTP, is_shown
from metacount.files import CONFIG
from metacount.resolve import Model, Source, TransformersOnly, find_any, find_over, remedy
from metacount.settings import parse_settings
from metacount.settings.values import dtype
from metacount.spec import DTYPE_BYTES
from metacount.textbook.count import OTHERS, count, fitted, length_shown, run_text
from metacount.textbook.engine import ENGINES, reserved_cache
from metacount.textbook.proven import CODE, SHOWN, count_data, proven_of, sizes_text

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from metacount.cli.options import Option
    from metacount.cli.report import Block, Cell, Report
    from metacount.files import Json
    from metacount.given import OwnModule
    from metacount.huggingface.checkpoint.totals import Totals
    from metacount.spec import ModelSpec, Request
    from metacount.textbook.count import Count
    from metacount.textbook.engine import Reserved
    from metacount.textbook.proven import Against, Proven, Said
    from metacount.verify.compare import Witness

    Any: TypeAlias = Model | TransformersOnly
    Kept: TypeAlias = dict[str, str] | None  # kv_dtype, state_dtype

APART = (
    ("--conventions --over --columns --markdown --csv --latex --engine MODEL", "--folder"),
    ("--kv-dtype --state-dtype", "--folder"),
    ("--columns --engine --kv-dtype --state-dtype", "--conventions"),
)
BELONGS = (("--jobs", "--folder"), ("--device", "--input"))
RUN = columns.RUN
# What `--json` has by role or by name, and what stands before these in a table.
BY_NAME = {"by_role": "", "active_by_role": "active ", "buffers": "buffer ",
           "checkpoint_parts": "checkpoint "}  # fmt: skip
ROLES = ("role", "params", "share", "active_params")
FACTS = ("kind", "n_layers", "d_model")
FLOPS = ("matmul_flops", "causal_matmul_flops")


def options() -> Sequence[Option]:
    return (
        MODELS,
        option(
            "--folder",
            "DIR",
            "count every model that a .json file below DIR describes; --json then prints one "
            "object a line",
        ),
        option(
            "--jobs",
            "N",
            "processes that count a folder (default: one for each core)",
            type=whole_number,
        ),
        *SETTINGS,
        OVER,
        *WORKLOAD,
        option("--kv-dtype", "DTYPE", "of the KV cache (default --dtype)", type=dtype),
        option("--state-dtype", "DTYPE", "of recurrent states (default --dtype)", type=dtype),
        option(
            "--engine",
            None,
            "also the KV cache as this engine reserves it, and by which rule",
            choices=ENGINES,
        ),
        flag(
            "--conventions",
            "the FLOPs of the workload under the conventions in use, and who uses each",
        ),
        columns.OPTION,
        INPUT,
        DEVICE,
        flag("--verbose", "also sources, notes, what is proven, and each figure's whole meaning"),
        *FORMATS,
    )


def run(args: argparse.Namespace) -> Answer | Pieces:
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    names = columns.checked(args.columns) if args.columns else []
    request = request_of(args)
    if args.folder is not None:
        from metacount.cli.folder import counted_folder

        return counted_folder(args.folder, request, args.settings, args.jobs, as_json=args.json)
    if not args.model:
        raise InputError("count needs MODEL or --folder DIR; see `metacount count --help`")
    if (own := _own(args)) is not None:
        return _own_answer(own, args.input, args.device)
    try:
        models = _models(args)
    except InputError:
        from metacount.huggingface.checkpoint.totals import totals_of

        # weights of which nothing but headers can be read
        totals = totals_of(args.model[0]) if len(args.model) == 1 else None
        if totals is None:
            raise
        return Answer(report=lambda: _totals_report(totals), data=totals.to_dict)
    if args.conventions:
        return _conventions(models, request)
    dtypes = {"kv_dtype": args.kv_dtype, "state_dtype": args.state_dtype}
    kept = {name: given for name, given in dtypes.items() if given} or None
    served = [_served(model, request, args.engine, kept) for model in models]
    if any(isinstance(model, TransformersOnly) for model in models):
        prepare_for_torch()
    if len(models) == 1 and not (args.json or args.table or names):
        return Answer(
            report=lambda: [
                *report_of(models[0], request, verbose=args.verbose, kept=kept),
                *([] if served[0] is None else _served_report(served[0])),
            ]
        )
    data = [
        data_of(model, request, kept) | ({} if found is None else {"engine": found.to_dict()})
        for model, found in zip(models, served, strict=True)
    ]
    if names:
        rows = [
            columns.Row(heading(model), model.name, getattr(model, "spec", None), each)
            for model, each in zip(models, data, strict=True)
        ]
        return columns.answer(names, rows, _sources(models, data))
    return Answer(
        report=lambda: _comparison(models, data),
        data=lambda: _single(data),
        table=lambda: _table(data),
    )


def _own(args: argparse.Namespace) -> OwnModule | None:
    """Find the module that is counted as it is; one without a config stands alone."""
    from argparse import Namespace

    for model in args.model if args.input or args.modules else ():
        found = own_module(Namespace(model=model, input=args.input), runs=False)
        if found is not None:
            for name in ("settings", "over", "columns", "conventions"):
                if getattr(args, name):
                    said = "set" if name == "settings" else name
                    raise InputError(f"--{said} is not for a module of your own; leave it out")
            if len(args.model) > 1:
                raise InputError(f"{shown(found.id)}: a module without a config is counted alone")
            return found
    return None


def _own_answer(own: OwnModule, sizes: Sequence[str], device: str) -> Answer:
    """Count somebody's own module: what is in it, and over inputs what its forward costs."""
    from metacount.api import tree
    from metacount.summary.modules import typed_inputs

    inputs = typed_inputs(own.module, sizes)
    root = tree(own.module, inputs=inputs, flops=bool(inputs), device=device).root
    rows: list[tuple[Cell, ...]] = [
        (
            child.name + (f" ×{child.count}" if child.count > 1 else ""),
            child.params * child.count,
            Share(part=child.params * child.count, whole=root.params),
        )
        for child in root.children
    ]
    trained = sum(p.numel() for p in own.module.parameters() if p.requires_grad)
    buffers = sum(b.numel() for b in own.module.buffers())
    figures: dict[str, int | None] = {
        "params": root.params,
        "param_bytes": root.bytes,
        "matmul_flops": root.flops,
        "macs": None if root.flops is None else root.flops // 2,
    }
    notes = [
        f"measured: numel() of your own module on the meta device ({type(own.module).__name__})"
    ]
    if not inputs:
        notes.append(f"FLOPs: give --input: {INPUT_SHOWN}")
    missing = "roles, active parameters and KV cache: not known of a module without a config"
    lines = [figure_row(name, n) for name, n in figures.items() if n is not None]
    lines[1:1] = [("trainable_params", trained, "of which have a gradient")]
    lines += [("buffers", buffers, "values, not among the parameters")] if buffers else []
    shapes = ", ".join(str([*each.shape]) for each in inputs)
    heads = ("module", "params", "share")
    return Answer(
        report=lambda: [
            [title(own.name, own.id)],
            [Grid(heads=heads, rows=rows, align="<>>", bars=[int(str(n)) for _, n, _ in rows])],
            [
                *([Text(f"over {shapes}", bold)] if shapes else []),
                Grid(heads=(), rows=lines, align="<>", prose=True),
            ],
            [Notes([("not counted", missing), *(("note", note) for note in notes)], pad=11)],
        ],
        data=lambda: {
            "model": own.id,
            "name": own.name,
            "changes": {},
            "workload": {"inputs": [[*each.shape] for each in inputs]},
            **figures,
            "trainable_params": trained,
            "buffers": buffers,
            "by_module": {str(name): n for name, n, _ in rows},
            "source": "given",
            "not_counted": [missing],
            "notes": notes,
        },
    )


def _models(args: argparse.Namespace) -> Sequence[Any]:
    """Find the models that are named, or the one that is named at every value of --over."""
    if args.over is None:
        return [find_any(argument, args.settings) for argument in args.model]
    if len(args.model) > 1:
        raise InputError(f"--over takes one MODEL: got {len(args.model)}")
    return find_over(args.model[0], args.settings, args.over)


def _totals_report(found: Totals) -> Report:
    """Report weights by their headers alone: groups, types and totals."""
    heads = ("group", "tensors", "values", "bytes", "types")
    rows: list[tuple[Cell, ...]] = [
        (name, g["tensors"], g.get("values"), g.get("bytes"), ", ".join(g.get("dtypes", ())))
        for name, g in found.by_group.items()
    ]
    total = [
        (name, n, short(n) if n else "")
        for name, n, short in (
            ("params", found.params, units.short),
            ("stored_bytes", found.stored_bytes, units.gib),
        )
    ]
    return [
        [Text(found.source, bold, whole=True)],
        [Grid(heads=heads, rows=rows, align="<>>><")],
        [Grid(heads=(), rows=total, align="<>", prose=True)],
        [Notes([("note", note) for note in found.notes])],
    ]


def _served(model: Any, request: Request, engine: str | None, kept: Kept) -> Reserved | None:
    """Count what an engine reserves for a model, or for its text part."""
    if engine is None:
        return None
    it = model.text if isinstance(model, TransformersOnly) else model
    if it is None:
        assert isinstance(model, TransformersOnly)
        raise InputError(f"--engine: {model.name} has no formula: {model.problem}")
    run = fitted(it.spec, request)
    return reserved_cache(it.spec, run, engine, (kept or {}).get("kv_dtype", run.dtype))


def _served_report(found: Reserved) -> Report:
    """Report what an engine reserves, apart from the figures."""
    each = f"{units.gib(found.kv_cache_bytes)}, of full sequences in {found.kv_dtype}"
    rows = [("reserved KV cache bytes", found.kv_cache_bytes, each)]
    return [[Grid(heads=(), rows=rows, align="<>", prose=True), Notes([("by", found.rule)])]]


def data_of(model: Any, request: Request, kept: Kept = None) -> Json:
    """Count a model for --json: by formula, or measured where there is none."""
    if isinstance(model, Model):
        return count_data(model, _counted(model, request, kept))
    found, workload, notes = _measured(model, request)
    if kept:
        why = "is measured as its code keeps it: --kv-dtype and --state-dtype go with a formula"
        raise InputError(f"{model.name} {why}")
    if model.text is not None:
        notes += _of_text(model.text, found, request)
    params, flops = found.figures["params"], found.figures["matmul_flops"]
    return {
        "model": model.id,
        "name": model.name,
        "changes": {},
        "text_params": None,  # of a model that is text alone
        "text_active_params": None,
        **found.figures,
        "by_role": found.parts["by_role"],
        "active_by_role": found.parts["active_by_role"],
        "buffers": found.parts["buffers"],
        "param_bytes": None if params is None else params * DTYPE_BYTES[workload["dtype"]],
        "macs": None if flops is None else flops // 2,
        "workload": workload,
        "source": found.name,
        "detail": found.detail,
        "warnings": [f"no formula: {model.problem}"],
        "inferred": [],
        "notes": notes,
    }


def _of_text(text: Model, found: Witness, request: Request) -> list[str]:
    """Fill in the figures of text that were not measured, by the formula of the text part; say
    which.
    """
    result = count(text.spec, request, quantised=text.quantised)
    counted = result.to_dict()
    measured = found.figures.get("text_params", found.figures["params"])
    if measured != counted["params"]:
        return [f"the formula of the text part is left out: it has {counted['params']} parameters"]
    names = [
        name
        for name, value in found.figures.items()
        if value is None and COUNTED[name].run and counted.get(name) is not None
    ]
    found.figures.update({name: counted[name] for name in names})
    stored, params = result.stored_bytes, found.figures["params"]
    if stored is not None and params is not None:
        width = DTYPE_BYTES["bf16"]
        found.figures["stored_bytes"] = stored + width * (params - counted["params"])
    said = [f"by the formula of the text part: {', '.join(names)}"] if names else []
    if stored is not None:
        said.append("stored_bytes: what is not of the text part is taken to be bf16, not packed")
    return [*said, *result.notes]


def _measured(model: TransformersOnly, request: Request) -> tuple[Witness, Json, list[str]]:
    """Measure transformers' own module: what it has, the workload that it ran, any notes on it."""
    from metacount.verify.compare import fitted_outside, outside_witnesses

    source = Source(config=model.source.config)
    workload, why = fitted_outside(source, request)
    (found, *_), _ = outside_witnesses(source, workload)
    return found, workload.to_dict(), [why] if why else []


def _counted(model: Model, request: Request, kept: Kept = None) -> Count:
    quantised = model.quantised
    return count(model.spec, request, notes=model.notes, quantised=quantised, kept=kept)


def report_of(model: Any, request: Request, *, verbose: bool = False, kept: Kept = None) -> Report:
    """Report one model: parameters by role, every figure with its meaning, where they are from."""
    if isinstance(model, Model):
        return count_report(model, _counted(model, request, kept), verbose=verbose)
    return _measured_report(model, data_of(model, request, kept))


def figures_report(result: Count) -> Report:
    """Report a count alone, as Python has it: parameters by role and every figure."""
    run, data = result.workload, result.to_dict()
    roles = _roles(result.by_role, result.active_by_role)
    figures = [
        figure_row(name, data.get(name)) for name in COUNTED if is_shown(name, [data.get(name)])
    ]
    return [
        [Grid(heads=ROLES, rows=roles, align="<>>>")],
        [Text(run_text(run), bold), Grid(heads=(), rows=figures, align="<>", prose=True)],
        [Notes([("warning", text) for text in result.warnings])],
    ]


def _roles(by_role: dict[str, int], active: dict[str, int]) -> list[tuple[Cell, ...]]:
    """List the roles that have parameters, with their shares and those that one token uses."""
    whole = sum(by_role.values())
    return [
        (role, n, Share(part=n, whole=whole), active.get(role)) for role, n in by_role.items() if n
    ]


def count_report(model: Model, result: Count, *, verbose: bool) -> Report:
    """Report what the formulas count of a model: figures last, notes in a line each before them;
    `verbose`: the figures first, with their whole meaning, and all that is to be said of them.
    """
    routed = result.active_by_role != result.by_role
    rows = _roles(result.by_role, result.active_by_role)
    if verbose or routed:
        whole = Share(part=result.params, whole=result.params)
        rows += [(), ("total", result.params, whole, result.active_params)]
    shown = 4 if routed else 3
    roles = Grid(
        heads=ROLES[:shown],
        rows=[row[:shown] for row in rows],
        align="<>>>"[:shown],
        bars=[n for n in result.by_role.values() if n],
    )
    buffers = [
        (name, n, "buffer values, not among the parameters")
        for name, n in result.buffers.items()
        if n
    ]
    figures = Grid(heads=(), rows=_figures(model.spec, result, verbose), align="<>", prose=True)
    head = [title(model.name, model.id), *_facts(model)]
    last: Report = [
        [roles],
        [Grid(heads=(), rows=buffers, align="<>", prose=True)],
        [Text(_workload(model.spec, result), bold), figures],
        _prediction(model, result, verbose),
    ]
    if verbose:
        return [head, *last, _notes(model, result)]
    return [[*head, *_brief_notes(model, result)], *last]


def _facts(model: Model) -> Iterator[Block]:
    spec = model.spec
    layers = f"{spec.n_encoder_layers} + " if spec.has_encoder else ""
    facts = [spec.kind, f"{layers}{spec.n_layers} layers", f"d_model {spec.d_model}"]
    if spec.vocab_size is not None:
        facts.append(f"vocab_size {spec.vocab_size}")
    if spec.is_moe:
        zero = f" and {spec.n_zero_experts} zero" if spec.n_zero_experts else ""
        facts.append(f"{spec.top_k} of {spec.n_experts}{zero} experts per token")
    yield Text(", ".join(facts), most=WIDEST_TEXT)
    changed = ", ".join(f"{name}={value}" for name, value in model.changes.items())
    computed = [("computed", text) for text in model.computed]
    yield Notes([("changed", changed), *computed], pad=8 if computed else 0)


def _workload(spec: ModelSpec, result: Count) -> str:
    run = result.workload
    parts = [f"batch {run.batch_size}", f"seq {length_shown(spec, run.seq_len)}"]
    if run.source_len is not None:
        parts.append(f"source {run.source_len}")
    if run.prefix_len:
        parts.append(f"prefix {run.prefix_len}")
    parts.append(f"{run.dtype} ({DTYPE_BYTES[run.dtype]} bytes per value)")
    names = {"kv_dtype": "KV cache", "state_dtype": "states"}
    parts += [f"{names[name]} {given}" for name, given in (result.kept or {}).items()]
    return ", ".join(parts)


def _figures(spec: ModelSpec, result: Count, verbose: bool) -> list[tuple[Cell, ...]]:
    """List name, exact value, and what it is, with the rounded value before it."""
    no_embed = "its tied token table stays" if spec.tie_embeddings else "without token table"
    if verbose:
        no_embed += ": the head multiplies with it" * spec.tie_embeddings
        if spec.d_per_layer is not None:
            no_embed = f"without the table of each layer's embeddings; {no_embed}"
    words = {"active_params_no_embed": no_embed}
    if spec.has_encoder and not verbose:
        words |= {n: COUNTED[n].brief.replace("forward", "both stacks") for n in FLOPS}
    if result.least_active_params is not None:
        words["active_params"] = "the most used for one token"
    data = result.to_dict()
    return [
        figure_row(name, data.get(name), words.get(name, _words(name, verbose)))
        for name in COUNTED
        if name not in OF_MTP and is_shown(name, [data.get(name)])
    ]


def _words(name: str, verbose: bool) -> str:
    return COUNTED[name].meaning if verbose else COUNTED[name].brief


def figure_row(name: str, value: int | None, meaning: str = "") -> tuple[Cell, ...]:
    """Make a row of a figure: its name, its value, and what it is, with the value in short."""
    meaning = meaning or FIGURES[name].brief
    if value is None:
        return name, None, "an encoder has no decode step"
    return name, value, f"{FIGURES[name].short(value)}: {meaning}" if value else meaning


def _prediction(model: Model, result: Count, verbose: bool) -> list[Block]:
    """Report what prediction modules add, in a table of their own."""
    if not result.prediction:
        return []
    n = model.spec.n_mtp_layers
    head = f"{n} multi-token-prediction module{'s' if n > 1 else ''}, in none of the figures above"
    rows = [
        figure_row(name, n, _words(name, verbose)) for name, n in result.prediction.items() if n
    ]
    return [
        Text(head, bold),
        Grid(heads=(), rows=rows, align="<>", prose=True),
        Notes([("stored", _stored(model, result))]),
    ]


def _stored(model: Model, result: Count) -> str:
    """Write the published checkpoint as a sum of figures and a rest; "" where none is published."""
    stored = None if model.published is None else model.published.stored_checkpoint
    if stored is None:
        return ""
    parts = result.checkpoint_parts(stored.total)
    words = {"mtp_copies": "copies of embedding and head"}
    terms = " + ".join(f"{units.exact(n)} {words.get(name, name)}" for name, n in parts.items())
    text = f"{units.exact(stored.total)} values in the published checkpoint = {terms}"
    return f"{text} ({stored.note})" if OTHERS in parts else text


def _brief_notes(model: Model, result: Count) -> list[Block]:
    """List what must be said, whole, and in a line each what may be asked for with --verbose."""
    must = [("warning", text) for text in result.warnings]
    must += [("config", text) for text in result.notes]
    brief: list[tuple[str, str]] = []
    asked = ["units"]
    if (entry := model.published) is not None:
        comparison = compare_published(entry, result.params)
        brief.append(("published", compared(comparison, entry, brief=True)))
        asked += ["sources", *(["what is inferred"] if entry.inferred else [])]
        asked += ["notes"] if entry.notes else []
    if (proof := proven_of(model, result)) is not None:
        notes = proven_notes(proof)
        brief += [note for note in notes if note[0] == "proven   "]
        must += [note for note in notes if note[0] != "proven   "]
        asked.append("what is proven")
    brief.append(("--verbose", f"for {', '.join(asked)}"))
    return [Notes([*must, *brief], pad=9)]


def _notes(model: Model, result: Count) -> list[Block]:
    notes = [("warning", text) for text in result.warnings]
    notes += [("config", text) for text in result.notes]
    if model.published is not None:
        entry = model.published
        notes.append(("published", compared(compare_published(entry, result.params), entry)))
        notes += published_notes(entry)
    notes.append(("units", "B = 10^9, T = 10^12; GiB = 2^30 bytes"))
    notes.append(("counted", "by formulas; `verify` compares with code, `--all-sizes` proves them"))
    proof = proven_of(model, result)
    proven = [] if proof is None else [Lines(lambda width: proven_lines(proof, width))]
    return [Notes(notes, pad=9), *proven]


def _measured_report(model: TransformersOnly, data: Json) -> Report:
    """Report parameters by role, every figure that was measured, and where they come from."""
    total, active = data["params"], data["active_by_role"] or {}
    rows = _roles(data["by_role"], active)
    all_active = sum(active.values()) if active else None
    rows += [(), ("total", total, Share(part=total, whole=total), all_active)]
    figures = [
        (name, data[name])
        for name in COUNTED
        if name in data and (data[name] is not None or name not in OF_MTP)
    ]
    run = data["workload"]
    notes = [("warning", f"no formula: {model.problem}")]
    notes += [("note   ", note) for note in data["notes"]]
    if model.entry is not None and total is not None:
        notes.append(("published", compared(compare_published(model.entry, total), model.entry)))
        notes += [(f"{label:9}", text) for label, text in published_notes(model.entry)]
    notes.append(("counted", f"by {data['detail']}"))
    work = f"batch {run['batch_size']}, seq {run['seq_len']}, {run['dtype']}"
    return [
        [Text(model.name, bold, whole=True)],
        [Grid(heads=ROLES, rows=rows, align="<>>>")],
        [Text(work, bold, whole=True), Grid(heads=(), rows=figures, align="<>")],
        [Notes(notes)],
    ]


def _conventions(models: Sequence[Any], request: Request) -> Answer:
    """Report each model's FLOPs under every convention."""
    from metacount.cli.conventions import conventions_data, conventions_report, conventions_table

    found = []
    for model in models:
        if isinstance(model, TransformersOnly):
            raise InputError(
                f"--conventions: {model.name} has no formula: {model.problem}; {remedy(model)}"
            )
        found.append((model, fitted(model.spec, request)))
    return Answer(
        report=lambda: [section for pair in found for section in conventions_report(*pair)],
        data=lambda: _single([conventions_data(*pair) for pair in found]),
        table=lambda: conventions_table(found),
    )


def _single(data: Sequence[Json]) -> object:
    """Several objects are a list; one is itself."""
    return data if len(data) > 1 else data[0]


def heading(model: Any) -> str:
    """Choose the heading of a model's column: its id, or the folder or file of its config.

    >>> from metacount.resolve import find_any
    >>> heading(find_any("gpt2")), heading(find_any("type:llama"))
    ('gpt2', 'type:llama')
    """
    if model.source is None or model.source.folder is None:
        return model.id
    file = os.path.basename(model.id)
    return os.path.basename(model.source.folder) if file == CONFIG else file.removesuffix(".json")


def _table(data: Sequence[Json]) -> Grid:
    """Tabulate what --json says of each model, without words: roles, workload, figures."""
    rows: list[tuple[Cell, ...]] = []
    for group, before in BY_NAME.items():
        parts = [model.get(group) or {} for model in data]
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [part.get(name) for part in parts]
            # nothing is said twice: who uses all parameters has the roles alone
            known = [model["by_role"].get(name) for model in data]
            if any(values) and (group != "active_by_role" or values != known):
                rows.append((before + name, *values))
    for name in RUN:
        values = [model["workload"].get(name) for model in data]
        if any(value is not None for value in values) and (any(values) or name != "prefix_len"):
            rows.append((name, *values))
    for name in COUNTED:
        values = [model.get(name) for model in data]
        if is_shown(name, values):
            rows.append((name, *values))
    heads = ("figure", *(str(model["model"]) for model in data))
    return Grid(heads=heads, rows=rows, align="<" + ">" * len(data))


def _comparison(models: Sequence[Any], data: Sequence[Json]) -> Report:
    """Report several models side by side, as many columns at once as fit."""
    roles = [role for role in data[0]["by_role"] if any(each["by_role"].get(role) for each in data)]
    buffers = dict.fromkeys(n for each in data for n, k in (each["buffers"] or {}).items() if k)
    run = ["seq_len"] if len({each["workload"]["seq_len"] for each in data}) > 1 else []
    figures = [n for n in COUNTED if is_shown(n, [each.get(n) for each in data]) and n != "params"]
    labels = [*FACTS, "", *roles, "params", *buffers, "", *run, *figures]
    rows: list[tuple[Cell, ...]] = [
        (label, *(_cell(*pair, label) for pair in zip(models, data, strict=True))) if label else ()
        for label in labels
    ]
    heads = ("", *map(heading, models))
    grid = Grid(heads=heads, rows=rows, align="<" + ">" * len(models), blocks=True)
    return [[Text(_common(data), bold, whole=True)], [grid], [_sources(models, data)]]


def _cell(model: Any, data: Json, label: str) -> Cell:
    if label in FACTS:
        if not isinstance(model, Model):
            return None
        encoder = label == "n_layers" and model.spec.has_encoder
        return (f"{model.spec.n_encoder_layers} + " if encoder else "") + str(
            getattr(model.spec, label)
        )
    if label == "seq_len":
        return str(data["workload"][label])
    value: Cell = {**data, **(data["buffers"] or {}), **data["by_role"]}.get(label)
    return value


def _common(data: Sequence[Json]) -> str:
    """Write the workload, as far as it is common to all models."""
    runs = [each["workload"] for each in data]
    parts = [f"batch {runs[0]['batch_size']}"]
    for name, label in (("seq_len", "seq"), ("source_len", "source"), ("prefix_len", "prefix")):
        values = {run[name] for run in runs}
        if len(values) == 1 and (value := values.pop()):
            parts.append(f"{label} {value}")
    dtype = runs[0]["dtype"]
    return ", ".join([*parts, f"{dtype} ({DTYPE_BYTES[dtype]} bytes per value)"])


def _sources(models: Sequence[Any], data: Sequence[Json]) -> Notes:
    """Say what is to be said of several models' figures: warnings, and where they come from."""
    notes = [
        (f"warning  {heading(model)}", warning)
        for model, each in zip(models, data, strict=True)
        for warning in each["warnings"]
    ]
    if any(isinstance(model, Model) for model in models):
        counted = (
            "by the formulas; `metacount verify MODEL` compares them with code, "
            "`metacount count MODEL` says what each figure means"
        )
        notes.append(("counted", counted))
    notes += [
        (f"measured  {heading(model)}", f"by {each['detail']}")
        for model, each in zip(models, data, strict=True)
        if not isinstance(model, Model)
    ]
    return Notes(notes)


# ---- what the record of proofs says: short here, whole for `verify --all-sizes`

SEE = " (verify --all-sizes)"


def proven_notes(proof: Proven) -> list[tuple[str, str]]:
    """Say what the figures are proven against, and what is another figure than what was proven."""
    sides = [against for against in (proof.code, proof.ours) if against is not None]
    equal = [
        _whose(it, proof, version=True) + " (in part)" * (len(it.of("equal")) < len(it.said))
        for it in sides
        if it.of("equal")
    ]
    wrong = {one.quantity: one.text for it in sides for one in it.of("other figure")}
    notes = [("proven   ", f"against {' and '.join(equal)}")] if equal else []
    notes += [("unproven ", f"{quantity}: {why}") for quantity, why in wrong.items()]
    return notes + [
        ("differs  ", f"{_quantities(those)}: not what {_whose(it, proof)} computes")
        for it in sides
        if (those := it.of("differs"))
    ]


def proven_lines(proof: Proven, width: int) -> list[str]:
    """Write what the figures are proven against, and a line for what is not: no domains."""
    lines = [line for note in proven_notes(proof) for line in paragraph(*note, width)]
    sides = [against for against in (proof.code, proof.ours) if against is not None]
    for against in sides:
        whose = _whose(against, proof)
        if those := against.of("chosen"):
            what = f"{whose} also runs experts that a token did not choose"
            lines += paragraph("runs more", f"{_quantities(those)}: {what}", width)
        if those := against.of("not said"):
            reasons = dict.fromkeys(one.text for one in those)
            said = f"{_quantities(those)} against {whose}"
            room = width - len("unproven   ") - len(said)
            why = next((w for w in (f": {'; '.join(reasons)}", SEE) if len(w) <= room), "")
            lines += paragraph("unproven ", said + why, width)
    return lines


def recorded_lines(proof: Proven, width: int) -> list[str]:
    """Write all that is recorded: what is equal to code and for which sizes, what is not, what is
    not said and why.
    """
    lines: list[str] = []
    for against in (proof.code, proof.ours):
        if against is None:
            continue
        whose = _whose(against, proof, version=True)
        domain = sizes_text(against.where, proof.small, SHOWN)
        if equal := against.of("equal"):
            lines += paragraph(
                "proven   ", f"{_quantities(equal)}: equal to {whose}, for {domain}", width
            )
        for one in against.of("chosen"):
            said = (
                f"{one.quantity}: the formula counts the experts that a token chose, and is "
                f"equal to {whose} for them; that code runs {one.text} more FLOPs, on experts "
                f"that it did not choose; for {domain}"
            )
            lines += paragraph("runs more", said, width)
        for one in against.of("differs"):
            said = f"{one.quantity}: the formula less {whose} is {one.text}"
            lines += paragraph("differs  ", said, width)
        reasons: dict[str, list[Said]] = {}
        for one in against.of("not said", "other figure"):
            reasons.setdefault(one.text, []).append(one)
        for why, those in reasons.items():
            said = f"{_quantities(those)}: not said to be proven against {whose}: {why}"
            lines += paragraph("unproven ", said, width)
    return lines


def _whose(against: Against, proof: Proven, *, version: bool = False) -> str:
    if against.side != CODE:
        return "our modules"
    numbers = f" {'.'.join(proof.transformers.split('.')[:2])}'s" if version else "'"
    other = proof.own_type not in (None, against.name)
    return f"transformers{numbers} {against.name}" + (" (same structure)" * other)


def _quantities(said: Iterable[Said]) -> str:
    return ", ".join(one.quantity for one in said)
