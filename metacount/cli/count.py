"""`metacount count`: parameters, FLOPs and KV cache of one model or of several."""

from __future__ import annotations

import argparse
import os

from metacount import units
from metacount.catalog import compare_published
from metacount.cli import columns
from metacount.cli.answer import Answer, Pieces, prepare_for_torch
from metacount.cli.models import compared, published_notes
from metacount.cli.options import INPUT_SHOWN, own_module, request_of
from metacount.cli.report import WIDEST_TEXT, Grid, Notes, Share, Text, bold, title
from metacount.errors import InputError, shown
from metacount.figures import COUNTED, FIGURES, OF_MTP, is_shown
from metacount.files import CONFIG
from metacount.resolve import Model, Source, TransformersOnly, find_any, find_over
from metacount.settings import parse_settings
from metacount.spec import DTYPE_BYTES
from metacount.textbook.count import OTHERS, count, fitted, length_shown
from metacount.textbook.engine import reserved_cache
from metacount.textbook.proven import CODE, SHOWN, count_data, proven_of, sizes_text

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    from metacount.cli.report import Block, Cell, Report
    from metacount.files import Json
    from metacount.given import OwnModule
    from metacount.huggingface.checkpoint.totals import Totals
    from metacount.spec import ModelSpec, Request, Workload
    from metacount.textbook.count import Count
    from metacount.textbook.engine import Reserved
    from metacount.textbook.proven import Against, Proven, Verdict
    from metacount.verify.compare import Witness

    Any: TypeAlias = Model | TransformersOnly
    Kept: TypeAlias = dict[str, str] | None  # kv_dtype, state_dtype

RUN = columns.RUN
# What `--json` has by role or by name, and what stands before these in a table.
BY_NAME = {"by_role": "", "active_by_role": "active ", "buffers": "buffer ",
           "checkpoint_parts": "checkpoint "}  # fmt: skip
ROLES = ("role", "params", "share", "active_params")
FACTS = ("kind", "n_layers", "d_model")
FLOPS = ("matmul_flops", "causal_matmul_flops")


def run(args: argparse.Namespace) -> Answer | Pieces:
    parse_settings(args.settings)  # a wrong setting is reported before a wrong model
    names = columns.checked(args.columns) if args.columns else []
    request = request_of(args)
    if args.folder is not None:
        from metacount.cli.folder import counted_folder

        return counted_folder(
            args.folder,
            request,
            data_of,
            settings=args.settings,
            jobs=args.jobs,
            as_json=args.json,
        )
    if not args.model:
        raise InputError("count needs MODEL or --folder DIR; see `metacount count --help`")
    for model in args.model if args.input or args.modules else ():
        own = own_module(argparse.Namespace(**{**vars(args), "model": model}), runs=False)
        if own is not None and len(args.model) > 1:
            raise InputError(f"{shown(own.id)}: a module without a config is counted alone")
        if own is not None:
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
        from metacount.cli.conventions import answer

        return answer(models, request)
    dtypes = {"kv_dtype": args.kv_dtype, "state_dtype": args.state_dtype}
    cache_dtypes = {name: given for name, given in dtypes.items() if given} or None
    if any(isinstance(model, TransformersOnly) for model in models):
        prepare_for_torch()
    served = [_served(model, request, args.engine, cache_dtypes) for model in models]
    if len(models) == 1 and not (args.json or args.table or names):
        return Answer(
            report=lambda: [
                *report_of(models[0], request, verbose=args.verbose, cache_dtypes=cache_dtypes),
                *([] if served[0] is None else _served_report(served[0])),
            ]
        )
    data = [
        data_of(model, request, cache_dtypes)
        | ({} if engine is None else {"engine": engine.to_dict()})
        for model, engine in zip(models, served, strict=True)
    ]
    if names:
        rows = [
            columns.Row(heading=heading(m), name=m.name, spec=getattr(m, "spec", None), data=each)
            for m, each in zip(models, data, strict=True)
        ]
        return columns.answer(names, rows, _sources(models, data))
    return Answer(
        report=lambda: _comparison(models, data),
        data=lambda: data if len(data) > 1 else data[0],
        table=lambda: _table(data),
    )


def _own_answer(own: OwnModule, sizes: Sequence[str], device: str) -> Answer:
    from metacount.api import tree
    from metacount.summary.modules import typed_inputs

    inputs = typed_inputs(own.module, sizes)
    root = tree(own.module, inputs=inputs, flops=bool(inputs), device=device).root
    parts = {
        child.name + (f" ×{child.count}" if child.count > 1 else ""): child.params * child.count
        for child in root.children
    }
    kind = type(own.module).__name__
    notes = [f"measured: numel() of your own module on the meta device ({kind})"]
    notes += [] if inputs else [f"FLOPs: give --input: {INPUT_SHOWN}"]
    missing = "roles, active parameters and KV cache: not known of a module without a config"
    shapes = [[*each.shape] for each in inputs]
    data: Json = {
        "model": own.id,
        "name": own.name,
        "changes": {},
        "workload": {"inputs": shapes},
        "params": root.params,
        "param_bytes": root.bytes,
        "matmul_flops": root.flops,
        "macs": None if root.flops is None else root.flops // 2,
        "trainable_params": sum(p.numel() for p in own.module.parameters() if p.requires_grad),
        "buffers": sum(b.numel() for b in own.module.buffers()),
        "by_module": parts,
        "source": "given",
        "not_counted": [missing],
        "notes": notes,
    }

    def report() -> Report:
        rows = [(name, n, Share(part=n, whole=root.params)) for name, n in parts.items()]
        figures = [figure_row(n, data[n]) for n in COUNTED if data.get(n) is not None]
        figures.insert(
            1, ("trainable_params", data["trainable_params"], "of which have a gradient")
        )
        if data["buffers"]:
            figures.append(("buffers", data["buffers"], "values, not among the parameters"))
        heads, bars = ("module", "params", "share"), [*parts.values()]
        return [
            [title(own.name, own.id)],
            [Grid(heads=heads, rows=rows, align="<>>", bars=bars)],
            [
                Text(f"over {', '.join(map(str, shapes))}" if shapes else "", bold),
                Grid(heads=(), rows=figures, align="<>", prose=True),
            ],
            [Notes([("not counted", missing), *(("note", note) for note in notes)], pad=11)],
        ]

    return Answer(report=report, data=lambda: data)


def _models(args: argparse.Namespace) -> Sequence[Any]:
    if args.over is None:
        return [find_any(argument, args.settings) for argument in args.model]
    if len(args.model) > 1:
        raise InputError(f"--over takes one MODEL: got {len(args.model)}")
    return find_over(args.model[0], args.settings, args.over)


def _totals_report(totals: Totals) -> Report:
    heads = ("group", "tensors", "values", "bytes", "types")
    rows: list[tuple[Cell, ...]] = [
        (name, g["tensors"], g.get("values"), g.get("bytes"), ", ".join(g.get("dtypes", ())))
        for name, g in totals.by_group.items()
    ]
    sums = (
        ("params", totals.params, units.short),
        ("stored_bytes", totals.stored_bytes, units.gib),
    )
    total = [(name, n, short(n) if n else "") for name, n, short in sums]
    return [
        [Text(totals.source, bold, unbroken=True)],
        [Grid(heads=heads, rows=rows, align="<>>><")],
        [Grid(heads=(), rows=total, align="<>", prose=True)],
        [Notes([("note", note) for note in totals.notes])],
    ]


def _served(
    model: Any, request: Request, engine: str | None, cache_dtypes: Kept
) -> Reserved | None:
    if engine is None:
        return None
    it = model.text if isinstance(model, TransformersOnly) else model
    if it is None:
        assert isinstance(model, TransformersOnly)
        raise InputError(f"--engine: {model.name} has no formula: {model.problem}")
    run = fitted(it.spec, request)
    return reserved_cache(it.spec, run, engine, (cache_dtypes or {}).get("kv_dtype", run.dtype))


def _served_report(reserved: Reserved) -> Report:
    each = f"{units.gib(reserved.kv_cache_bytes)}, of full sequences in {reserved.kv_dtype}"
    rows = [("reserved KV cache bytes", reserved.kv_cache_bytes, each)]
    return [[Grid(heads=(), rows=rows, align="<>", prose=True), Notes([("by", reserved.rule)])]]


def data_of(model: Any, request: Workload | Request, cache_dtypes: Kept = None) -> Json:
    """Count a model for --json: by formula, or measured where there is none."""
    if isinstance(model, Model):
        return count_data(model, _counted(model, request, cache_dtypes))
    from metacount.verify.compare import fitted_outside, outside_witnesses

    source = Source(config=model.source.config)
    workload, why = fitted_outside(source, request)
    (measured, *_), _ = outside_witnesses(source, workload)
    notes = [why] if why else []
    if cache_dtypes:
        why = "is measured as its code keeps it: --kv-dtype and --state-dtype go with a formula"
        raise InputError(f"{model.name} {why}")
    if model.text is not None:
        notes += _of_text(model.text, measured, request)
    params, flops = measured.figures["params"], measured.figures["matmul_flops"]
    return {
        "model": model.id,
        "name": model.name,
        "changes": {},
        "text_params": None,  # of a model that is text alone
        "text_active_params": None,
        **measured.figures,
        "by_role": measured.parts["by_role"],
        "active_by_role": measured.parts["active_by_role"],
        "buffers": measured.parts["buffers"],
        "param_bytes": None if params is None else params * DTYPE_BYTES[workload.dtype],
        "macs": None if flops is None else flops // 2,
        "workload": workload.to_dict(),
        "source": measured.name,
        "detail": measured.detail,
        "warnings": [f"no formula: {model.problem}"],
        "inferred": [],
        "notes": notes,
    }


def _of_text(text: Model, measured: Witness, request: Workload | Request) -> list[str]:
    """Fill in the figures of text that were not measured, by the formula of the text part; say
    which.
    """
    result = count(text.spec, request, quantised=text.quantised)
    counted = result.to_dict()
    if measured.figures.get("text_params", measured.figures["params"]) != counted["params"]:
        return [f"the formula of the text part is left out: it has {counted['params']} parameters"]
    names = [
        name
        for name, value in measured.figures.items()
        if value is None and COUNTED[name].run and counted.get(name) is not None
    ]
    measured.figures.update({name: counted[name] for name in names})
    stored, params = result.stored_bytes, measured.figures["params"]
    if stored is not None and params is not None:
        width = DTYPE_BYTES["bf16"]
        measured.figures["stored_bytes"] = stored + width * (params - counted["params"])
    notes = [f"by the formula of the text part: {', '.join(names)}"] if names else []
    if stored is not None:
        notes.append("stored_bytes: what is not of the text part is taken to be bf16, not packed")
    return [*notes, *result.notes]


def _counted(model: Model, request: Workload | Request, cache_dtypes: Kept = None) -> Count:
    quantised = model.quantised
    return count(
        model.spec, request, notes=model.notes, quantised=quantised, cache_dtypes=cache_dtypes
    )


def report_of(
    model: Any, request: Request, *, verbose: bool = False, cache_dtypes: Kept = None
) -> Report:
    """Report one model, counted or measured: figures last, notes in a line each before them;
    `verbose` or measured: figures first, with their whole meaning, and all that is to be said.
    """
    if not isinstance(model, Model):
        data = data_of(model, request, cache_dtypes)
        return [
            [title(model.name, model.id)],
            *figures_report(data),
            [_notes(model, data, None)],
        ]
    result = _counted(model, request, cache_dtypes)
    head = [title(model.name, model.id), *_facts(model)]
    data, proof = result.to_dict(), proven_of(model, result)
    last = figures_report(data, model.spec, verbose=verbose, stored=_stored(model, result))
    if verbose:
        return [head, *last, [_notes(model, data, proof)]]
    return [[*head, _brief_notes(model, data, proof)], *last]


def figures_report(
    data: Json, spec: ModelSpec | None = None, *, verbose: bool = True, stored: str = ""
) -> Report:
    """Report figures as --json has them: parameters by role, each figure with what it is, and what
    prediction modules add; `verbose`: with its whole meaning.
    """
    total, by_role, active = data["params"], data["by_role"], data["active_by_role"] or {}
    n_heads = 4 if active != by_role else 3
    roles = {role: n for role, n in by_role.items() if n}
    rows: list[tuple[Cell, ...]] = [
        (role, n, Share(part=n, whole=total), active.get(role)) for role, n in roles.items()
    ]
    if verbose or n_heads == 4:
        rows += [(), ("total", total, Share(part=total, whole=total), data["active_params"])]
    buffers = [
        (name, n, "buffer values, not among the parameters")
        for name, n in (data["buffers"] or {}).items()
        if n
    ]
    is_encoder = spec is not None and spec.decoder is None
    missing = "an encoder has no decode step" if data["source"] == "formula" else "not measured"
    words = _words(data, spec, verbose)
    figures: list[tuple[Cell, ...]] = []
    added: list[tuple[Cell, ...]] = []
    for name in COUNTED:
        n = data.get(name)
        if is_shown(name, [n]) and (verbose or n != 0 or not is_encoder):
            row = figure_row(name, n, missing if n is None else words[name])
            (added if name in OF_MTP else figures).append(row)
    n_modules = 0 if spec is None else spec.n_mtp_layers
    modules = f"{n_modules or ''} multi-token-prediction module{'s' if n_modules != 1 else ''}"
    above = f"{modules.lstrip()}, in none of the figures above" if added else ""

    def table(rows: Sequence[Sequence[Cell]]) -> Grid:
        return Grid(heads=(), rows=rows, align="<>", prose=True)

    by_roles = [row[:n_heads] for row in rows]
    bars = [*roles.values()]
    return [
        [Grid(heads=ROLES[:n_heads], rows=by_roles, align="<>>>"[:n_heads], bars=bars)],
        [table(buffers)],
        [Text(_workload([data["workload"]], spec), bold), table(figures)],
        [Text(above, bold), table(added), Notes([("stored", stored)])],
    ]


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


def _workload(runs: Sequence[Json], spec: ModelSpec | None = None) -> str:
    parts = [f"batch {runs[0]['batch_size']}"]
    for name, label in (("seq_len", "seq"), ("source_len", "source"), ("prefix_len", "prefix")):
        values = {run[name] for run in runs}
        if len(values) == 1 and (n := values.pop()):
            is_all = spec is not None and name == "seq_len"
            parts.append(f"{label} {length_shown(spec, n) if spec is not None and is_all else n}")
    dtype = runs[0]["dtype"]
    parts.append(f"{dtype} ({DTYPE_BYTES[dtype]} bytes per value)")
    names = {"kv_dtype": "KV cache", "state_dtype": "states"}
    if len(runs) == 1:
        parts += [f"{names[name]} {runs[0][name]}" for name in names if name in runs[0]]
    return ", ".join(parts)


def _words(data: Json, spec: ModelSpec | None, verbose: bool) -> dict[str, str]:
    words = {n: figure.meaning if verbose else figure.brief for n, figure in COUNTED.items()}
    if data.get("least_active_params") is not None:
        words["active_params"] = "the most used for one token"
    if spec is None:
        return words
    no_embed = "its tied token table stays" if spec.tie_embeddings else "without token table"
    if verbose:
        no_embed += ": the head multiplies with it" * spec.tie_embeddings
        if spec.d_per_layer is not None:
            no_embed = f"without the table of each layer's embeddings; {no_embed}"
    words["active_params_no_embed"] = no_embed
    if spec.has_encoder and not verbose:
        words |= {n: COUNTED[n].brief.replace("forward", "both stacks") for n in FLOPS}
    return words


def figure_row(name: str, value: int | None, meaning: str = "") -> tuple[Cell, ...]:
    """Make a row of a figure: its name, its value, and what it is, with the value in short."""
    meaning = meaning or FIGURES[name].brief
    return name, value, f"{FIGURES[name].short(value)}: {meaning}" if value else meaning


def _stored(model: Model, result: Count) -> str:
    """Write the published checkpoint as a sum of figures and a rest; "" where none is published."""
    stored = None if model.published is None else model.published.stored_checkpoint
    if stored is None or not result.prediction:
        return ""
    parts = result.checkpoint_parts(stored.total)
    words = {"mtp_copies": "copies of embedding and head"}
    terms = " + ".join(f"{units.exact(n)} {words.get(name, name)}" for name, n in parts.items())
    text = f"{units.exact(stored.total)} values in the published checkpoint = {terms}"
    return f"{text} ({stored.note})" if OTHERS in parts else text


def _brief_notes(model: Model, data: Json, proof: Proven | None) -> Notes:
    """List what must be said, whole, and in a line each what may be asked for with --verbose."""
    must = [("warning", text) for text in data["warnings"]]
    must += [("config", text) for text in data["notes"]]
    brief: list[tuple[str, str]] = []
    asked = ["units"]
    if (entry := model.published) is not None:
        comparison = compare_published(entry, data["params"])
        brief.append(("published", compared(comparison, entry, brief=True)))
        asked += ["sources", *(["what is inferred"] if entry.inferred else [])]
        asked += ["notes"] if entry.notes else []
    if proof is not None:
        for note in proven_notes(proof):
            (brief if note[0] == "proven" else must).append(note)
        asked.append("what is proven")
    brief.append(("--verbose", f"for {', '.join(asked)}"))
    return Notes([*must, *brief], pad=9)


def _notes(model: Any, data: Json, proof: Proven | None) -> Notes:
    """Say all that is to be said of figures: warnings, what was published, where they are from."""
    notes = [("warning", text) for text in data["warnings"]]
    notes += [("config" if isinstance(model, Model) else "note", text) for text in data["notes"]]
    entry = model.published if isinstance(model, Model) else model.entry
    if entry is not None and data["params"] is not None:
        notes.append(("published", compared(compare_published(entry, data["params"]), entry)))
        notes += published_notes(entry)
    notes.append(("units", "B = 10^9, T = 10^12; GiB = 2^30 bytes"))
    formulas = "formulas; `verify` compares with code, `--all-sizes` proves them"
    notes.append(("counted", f"by {data.get('detail', formulas)}"))
    return Notes([*notes, *([] if proof is None else recorded_notes(proof))], pad=9)


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
    columns = []
    for model, each in zip(models, data, strict=True):
        column: dict[str, Cell] = {**each, **(each["buffers"] or {}), **each["by_role"]}
        column["seq_len"] = str(each["workload"]["seq_len"])
        if isinstance(model, Model):
            column |= {name: str(getattr(model.spec, name)) for name in FACTS}
            if model.spec.has_encoder:
                column["n_layers"] = f"{model.spec.n_encoder_layers} + {model.spec.n_layers}"
        columns.append(column)
    roles = [role for role in data[0]["by_role"] if any(column.get(role) for column in columns)]
    buffers = dict.fromkeys(n for each in data for n, k in (each["buffers"] or {}).items() if k)
    run = ["seq_len"] if len({column["seq_len"] for column in columns}) > 1 else []
    figures = [n for n in COUNTED if is_shown(n, [each.get(n) for each in data]) and n != "params"]
    labels = [*FACTS, "", *roles, "params", *buffers, "", *run, *figures]
    rows: list[tuple[Cell, ...]] = [
        (label, *(column.get(label) for column in columns)) if label else () for label in labels
    ]
    heads = ("", *map(heading, models))
    grid = Grid(heads=heads, rows=rows, align="<" + ">" * len(models), blocks=True)
    run_text = Text(_workload([each["workload"] for each in data]), bold, unbroken=True)
    return [[run_text], [grid], [_sources(models, data)]]


def _sources(models: Sequence[Any], data: Sequence[Json]) -> Notes:
    pairs = [*zip(models, data, strict=True)]
    notes = [(f"warning  {heading(m)}", text) for m, each in pairs for text in each["warnings"]]
    if any(isinstance(model, Model) for model in models):
        counted = (
            "by the formulas; `metacount verify MODEL` compares them with code, "
            "`metacount count MODEL` says what each figure means"
        )
        notes.append(("counted", counted))
    outside = [pair for pair in pairs if not isinstance(pair[0], Model)]
    return Notes([*notes, *((f"measured  {heading(m)}", f"by {d['detail']}") for m, d in outside)])


# ---- what the record of proofs says


def proven_notes(proof: Proven) -> list[tuple[str, str]]:
    """Say what the figures are proven against, and what is another figure than what was proven."""
    sides = [against for against in (proof.code, proof.ours) if against is not None]
    equal = [
        _whose(side, proof, version=True)
        + " (in part)" * (len(side.of("equal")) < len(side.verdicts))
        for side in sides
        if side.of("equal")
    ]
    wrong = {each.quantity: each.text for side in sides for each in side.of("other figure")}
    notes = [("proven", f"against {' and '.join(equal)}")] if equal else []
    notes += [("unproven", f"{quantity}: {why}") for quantity, why in wrong.items()]
    for side in sides:
        if differing := side.of("differs"):
            what = f"{_quantities(differing)}: not what {_whose(side, proof)} computes"
            notes.append(("differs", what))
    return notes


def recorded_notes(proof: Proven) -> list[tuple[str, str]]:
    """Say all that is recorded: what is equal to code and for which sizes, what is not, what is
    not said and why.
    """
    notes = []
    for against in (side for side in (proof.code, proof.ours) if side is not None):
        whose = _whose(against, proof, version=True)
        domain = sizes_text(against.where, proof.small, SHOWN)
        if equal := against.of("equal"):
            notes.append(("proven", f"{_quantities(equal)}: equal to {whose}, for {domain}"))
        for each in against.of("chosen"):
            text = (
                f"{each.quantity}: the formula counts the experts that a token chose, and is equal "
                f"to {whose} for them; that code runs {each.text} more FLOPs, on experts that it "
                f"did not choose; for {domain}"
            )
            notes.append(("runs more", text))
        for each in against.of("differs"):
            notes.append(("differs", f"{each.quantity}: the formula less {whose} is {each.text}"))
        left: dict[str, list[Verdict]] = {}
        for each in against.of("not said", "other figure"):
            left.setdefault(each.text, []).append(each)
        for why, those in left.items():
            text = f"{_quantities(those)}: not said to be proven against {whose}: {why}"
            notes.append(("unproven", text))
    return notes


def _whose(against: Against, proof: Proven, *, version: bool = False) -> str:
    if against.side != CODE:
        return "our modules"
    numbers = f" {'.'.join(proof.transformers.split('.')[:2])}'s" if version else "'"
    other = proof.own_type not in (None, against.name)
    return f"transformers{numbers} {against.name}" + (" (same structure)" * other)


def _quantities(proofs: Iterable[Verdict]) -> str:
    return ", ".join(each.quantity for each in proofs)
