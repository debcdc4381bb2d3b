"""Puts witnesses side by side: the formulas, our modules, and what others wrote.

A witness is an independent opinion. Counts are compared with `==`, never with a tolerance.
"""

from __future__ import annotations

from metacount.catalog import CatalogEntry, compare_published
from metacount.figures import BREAKDOWNS, PREDICTED, QUANTITIES
from metacount.figures import Witness as Witness
from metacount.formulas import mtp
from metacount.frozen import frozen
from metacount.resolve import TransformersOnly
from metacount.spec import DTYPE_BYTES, SEQ_LEN, ModelSpec, Request, Workload
from metacount.tensors import DTYPES
from metacount.textbook.count import count, fitted, run_sizes, said_of_length
from metacount.units import exact

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.measure.counter import MeasuredRun
    from metacount.modules.model import Model as RunModel
    from metacount.resolve import Model, Source


def formula_parts(spec: ModelSpec, run: Workload) -> dict[str, dict[str, int] | None]:
    """Give the formulas' parts by breakdown; None of each in a model without modules."""
    if spec.prediction is None:
        return {"mtp_by_role": None, "mtp_matmul_flops_by_role": None}
    flops = mtp.PREDICTION["mtp_matmul_flops"](spec, run_sizes(spec, run))
    return {"mtp_by_role": mtp.params_by_role(spec), "mtp_matmul_flops_by_role": flops}


def measured_prediction(
    model: RunModel, run: Workload
) -> tuple[dict[str, int | None], dict[str, dict[str, int] | None]]:
    """Measure the figures and the parts that our modules show beside `model`, by name."""
    if model.spec.prediction is None:
        return dict.fromkeys(PREDICTED), {"mtp_by_role": None, "mtp_matmul_flops_by_role": None}
    from metacount.measure.ours import measure_params, measure_prediction
    from metacount.modules.build import build_prediction

    module = build_prediction(model)
    params, ran = measure_params(module.layers), measure_prediction(module, run)
    assert ran.decode and ran.cache  # prediction modules belong to a decoder
    # a cache of bf16 stands for one in a dtype that no module runs in
    bytes_here = DTYPE_BYTES[run.dtype if run.dtype in DTYPES else "bf16"]
    figures: dict[str, int | None] = {
        "mtp_params": params.params,
        "mtp_active_params": params.active_params,
        "mtp_matmul_flops": ran.prefill.matmul_flops,
        "mtp_causal_matmul_flops": ran.prefill.causal_matmul_flops,
        "mtp_decode_matmul_flops": ran.decode.matmul_flops,
        "mtp_kv_cache_bytes": ran.cache.kv_bytes // bytes_here * DTYPE_BYTES[run.dtype],
    }
    parts: dict[str, dict[str, int] | None] = {
        "mtp_by_role": params.by_role,
        "mtp_matmul_flops_by_role": ran.prefill.by_role,
    }
    return figures, parts


@frozen
class Verification:
    """All witnesses of one model, and where they differ (empty: they agree)."""

    model: str
    workload: Workload
    witnesses: tuple[Witness, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """No two witnesses differ."""
        return not self.differences

    def to_dict(self) -> Json:
        """Return plain data."""
        return {
            "model": self.model,
            "agree": self.agree,
            "workload": self.workload.to_dict(),
            "witnesses": [witness.to_dict() for witness in self.witnesses],
            "differences": list(self.differences),
            "notes": list(self.notes),
        }


def formula_witness(spec: ModelSpec, workload: Workload) -> Witness:
    """Count by the formulas."""
    from metacount.formulas import model

    counted = count(spec, workload).to_dict()
    run = fitted(spec, workload)
    sizes = {"batch_size": run.batch_size, "source_len": run.source_len}
    forward = {**sizes, "seq_len": run.seq_len}
    decode = None
    if spec.kind != "encoder":
        decode = model.decode_matmul_flops_by_role(spec, **sizes, kv_len=run.seq_len)
    return Witness(
        name="formula",
        figures={name: counted.get(name) for name in QUANTITIES},
        parts={
            "by_role": counted["by_role"],
            "active_by_role": counted["active_by_role"],
            "matmul_flops_by_role": model.matmul_flops_by_role(spec, **forward),
            "causal_matmul_flops_by_role": model.causal_matmul_flops_by_role(
                spec, **forward, prefix_len=run.prefix_len
            ),
            "decode_matmul_flops_by_role": decode,
            "buffers": model.buffers(spec),
            **formula_parts(spec, run),
        },
        detail="algebra from the papers",
    )


def reference_witness(spec: ModelSpec, workload: Workload) -> tuple[Witness, MeasuredRun]:
    """Instantiate our own module on meta, run it and count what it shows; return the run, too."""
    import torch

    from metacount.measure.counter import NO_CACHE
    from metacount.measure.ours import measure_forward, measure_params
    from metacount.modules.build import DTYPES, build
    from metacount.tensors import tensor_bytes

    run = fitted(spec, workload)
    # no module runs in fp8 or int8: the cache is then measured in bf16 and its values re-priced
    dtype = run.dtype if run.dtype in DTYPES else "bf16"
    module = build(spec, dtype=dtype)
    measured = measure_params(module)
    ran = measure_forward(module, run)
    cache = ran.cache or NO_CACHE  # an encoder's
    prediction, beside_parts = measured_prediction(module, run)

    def priced(n_bytes: int) -> int:
        return n_bytes // DTYPE_BYTES[dtype] * DTYPE_BYTES[run.dtype]

    witness = Witness(
        name="reference",
        figures={
            "params": measured.params,
            "active_params": measured.active_params,
            "active_params_no_embed": measured.no_embed,
            "matmul_flops": ran.prefill.matmul_flops,
            "causal_matmul_flops": ran.prefill.causal_matmul_flops,
            "decode_matmul_flops": None if ran.decode is None else ran.decode.matmul_flops,
            "kv_cache_bytes_per_token": priced(ran.kv_bytes_per_token or 0),
            "kv_cache_bytes": priced(cache.kv_bytes),
            "cross_kv_cache_bytes": priced(cache.cross_kv_bytes),
            # a state of another dtype than the module's keeps it
            "state_bytes": tensor_bytes(s for s in cache.states if s.dtype != DTYPES[dtype])
            + priced(tensor_bytes(s for s in cache.states if s.dtype == DTYPES[dtype])),
            **prediction,
        },
        parts={
            "by_role": measured.by_role,
            "active_by_role": measured.active_by_role,
            "matmul_flops_by_role": ran.prefill.by_role,
            "causal_matmul_flops_by_role": ran.prefill.causal_by_role,
            "decode_matmul_flops_by_role": None if ran.decode is None else ran.decode.by_role,
            "buffers": measured.buffers,
            **beside_parts,
        },
        detail=f"our module on meta, torch {torch.__version__}",
    )
    return witness, ran


def published_witness(entry: CatalogEntry, params: int) -> Witness | None:
    """Return what was published; None where nothing was. Only exact integers are figures.

    A rounded label is no figure to be equal to: the detail says how `params` compares with it.
    """
    published = entry.published
    if published.params is None and published.label is None:
        return None
    compared = compare_published(entry, params)
    text = f"label {published.label}" if published.params is None else published.params_source or ""
    if published.params is None:
        how = {"rounds": "our count rounds to it"}.get(
            compared.status, f"our count differs by {compared.percent}: {compared.explanation}"
        )
        text = f"{text}; {how}"
    figures: dict[str, int | None] = dict.fromkeys(QUANTITIES)
    figures["params"] = published.params
    figures["active_params"] = published.active_params
    return Witness(name="published", figures=figures, parts=dict.fromkeys(BREAKDOWNS), detail=text)


def differences(witnesses: tuple[Witness, ...]) -> tuple[str, ...]:
    """List every quantity, role and buffer on which two witnesses do not say the same integer.

    Each witness is compared with the first one that has an opinion.
    """
    texts = []
    for name in QUANTITIES:
        texts += _spread(name, [(w.name, w.figures[name]) for w in witnesses])
    for name in BREAKDOWNS:
        figures_of = [(w.name, w.parts[name]) for w in witnesses]
        opinions = [(witness, parts) for witness, parts in figures_of if parts is not None]
        for key in sorted({key for _, parts in opinions for key in parts}):
            texts += _spread(f"{name}.{key}", [(w, parts.get(key, 0)) for w, parts in opinions])
    return tuple(texts)


def _spread(name: str, figures: list[tuple[str, int | None]]) -> list[str]:
    known = [(witness, value) for witness, value in figures if value is not None]
    return [
        f"{name}: {known[0][0]} - {witness} = {exact(known[0][1])} - {exact(value)} "
        f"= {exact(known[0][1] - value)}"
        for witness, value in known[1:]
        if value != known[0][1]
    ]


def fitted_outside(source: Source, workload: Workload | Request) -> tuple[Workload, str]:
    """Return the workload as transformers' module of a config runs it,
    and what is to be said of it.

    A length that was left open is the default, or what the config has positions for.
    """
    if isinstance(workload, Workload):
        return workload, ""
    if workload.seq_len is not None:
        return workload.within(None), ""
    from metacount.huggingface.module.model import longest_of

    longest, key = longest_of(source.config) or (SEQ_LEN, "")
    limit = f"seq_len {longest}: {key} of its config" if longest < SEQ_LEN else ""
    return workload.within(longest), limit


def outside_witnesses(
    source: Source, workload: Workload, spec: ModelSpec | None = None
) -> tuple[tuple[Witness, ...], tuple[str, ...]]:
    """Count by transformers' own module and, where weights lie beside the config,
    by the checkpoint's header.

    Also every tensor on which these two differ, and the first layer whose products are not those of
    the formulas of `spec`. Raises `SpecError` for a config that builds no
    model, `InputError` for a checkpoint that cannot be read.
    """
    from metacount.huggingface.module.model import build_transformers
    from metacount.huggingface.module.witness import module_witness, run_dtype

    module, choice = build_transformers(source, dtype=run_dtype(workload))
    theirs, ran = module_witness(module, choice, workload)
    lines: tuple[str, ...] = ()
    if spec is not None and ran is not None:
        from metacount.verify.operations import differing_layers

        lines = tuple(differing_layers(spec, workload, module, ran.counters[0]))
    from metacount.huggingface.checkpoint.conversion import checkpoint_of

    checkpoint = checkpoint_of(source, module)
    if checkpoint is None:
        return (theirs,), lines
    from metacount.huggingface.checkpoint.compare import TIED, compare, module_tensors
    from metacount.huggingface.checkpoint.formats import quantization_of
    from metacount.huggingface.checkpoint.witness import checkpoint_witness

    report, convert = checkpoint
    compared = compare(
        module_tensors(module),
        report.tensors,
        convert=convert,
        quantization=quantization_of(source.config),
    )
    lines += tuple(f"checkpoint: {line}" for line in compared.differences())
    if source.config.get("tie_word_embeddings") is False:
        # a header cannot tell a copy from a tensor of its own; the config says which it is
        lines += tuple(
            f"checkpoint: {extra.name} ({exact(extra.n_values)} values): the config says that it "
            "is not tied, transformers' class shares it"
            for extra in compared.extra_of(TIED)
        )
    return (theirs, checkpoint_witness(report, compared)), lines


def verify(
    name: str,
    spec: ModelSpec | None,
    workload: Workload | Request,
    *,
    entry: CatalogEntry | None = None,
    source: Source | None = None,
    notes: tuple[str, ...] = (),
) -> Verification:
    """Put every witness side by side: formula and reference of `spec`, then everybody else.

    `notes` are said with the result: how the config was read, or why there is no formula.

    `entry` is the catalog's, when the published count belongs to exactly this spec; `source` is
    the Hugging Face config that the spec stands for, or the model itself where there is no spec.
    Raises `SpecError` for a model too large to be instantiated block by block.
    """
    witnesses: list[Witness] = []
    lines: tuple[str, ...] = ()
    if spec is not None:
        run, limit = fitted(spec, workload), said_of_length(spec, workload)
        from metacount.verify.operations import differing_operations

        reference, ran = reference_witness(spec, run)
        witnesses = [formula_witness(spec, run), reference]
        lines = tuple(differing_operations(spec, run, ran.counters))
        notes = (*notes, *([limit] if limit else []), *count(spec, run).warnings)
    elif source is not None:
        run, limit = fitted_outside(source, workload)
        notes = (*notes, *([limit] if limit else []))
    else:
        raise ValueError("a model is a spec or a source: got neither")
    if source is not None:
        # what was asked, not what our side made of it: a mistake in `fitted` must show
        asked = workload if isinstance(workload, Workload) else workload.within(run.seq_len)
        theirs, notes_of_theirs = outside_witnesses(source, asked, spec)
        lines += notes_of_theirs
        witnesses += theirs
    if entry is not None:
        formula = witnesses[0]
        params = formula.figures["params"]
        assert params is not None  # the formula has an opinion on everything
        published = published_witness(entry, params)
        witnesses += [published] if published is not None else []
    return Verification(
        model=name,
        workload=run,
        witnesses=tuple(witnesses),
        differences=(*differences(tuple(witnesses)), *lines),
        notes=notes,
    )


def verify_model(model: Model | TransformersOnly, workload: Workload | Request) -> Verification:
    """Put the witnesses of a model that was looked up side by side, with what is to be said."""
    if isinstance(model, TransformersOnly):
        why = f"no formula and no reference module: {model.problem}"
        return verify(model.id, None, workload, source=model.source, notes=(why,))
    notes = model.notes
    if model.changes:
        changed = ", ".join(f"{name}={value}" for name, value in model.changes.items())
        notes += (f"changed {changed}: nothing published, no config and no checkpoint is of this",)
    return verify(
        model.id,
        model.spec,
        workload,
        entry=model.published,
        source=model.source,
        notes=notes,
    )
