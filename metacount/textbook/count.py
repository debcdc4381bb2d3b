"""Every figure of one model and one workload, from the formulas: what `count` prints."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formulas import model
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, ModelSpec, Request, Workload, check_dtype

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from metacount.files import Json
    from metacount.formulas.dim import Dim

    Quantity: TypeAlias = Callable[[ModelSpec, Mapping[str, Dim]], dict[str, Dim]]


ALL_POSITIONS = "all its positions"
OTHERS = "others"


def run_text(run: Workload) -> str:
    """Write the sizes of a run: batch 1, seq 2048, bf16."""
    source = "" if run.source_len is None else f", source {run.source_len}"
    return f"batch {run.batch_size}, seq {run.seq_len}, {run.dtype}{source}"


def length_shown(spec: ModelSpec, n: int) -> str:
    """Write a length as a screen shows it.

    >>> from metacount.catalog import entry
    >>> length_shown(entry("gpt2").spec(), 1024), length_shown(entry("gpt2").spec(), 7)
    ('1024 (all its positions)', '7')
    """
    return f"{n} ({ALL_POSITIONS})" if n == spec.longest else str(n)


@frozen
class Count:
    """The figures of one model, exact, in the order of JSON.

    `decode_matmul_flops` is None for an encoder, `least_active_params` where every token uses as
    many: without zero experts. `selection`: what an indexer saves and costs, `prediction`: what
    prediction modules add, by name; empty without them.
    """

    params: int
    active_params: int
    active_params_no_embed: int
    by_role: dict[str, int]
    active_by_role: dict[str, int]
    buffers: dict[str, int]
    param_bytes: int
    workload: Workload
    matmul_flops: int
    causal_matmul_flops: int
    macs: int  # every product counts 2 FLOPs, so the half is exact
    decode_matmul_flops: int | None = None
    kv_cache_bytes_per_token: int
    kv_cache_bytes: int
    cross_kv_cache_bytes: int
    state_bytes: int
    least_active_params: int | None
    selection: dict[str, int]
    prediction: dict[str, int]
    stored_bytes: int | None = None  # of a quantised config
    kept: dict[str, str] | None = None  # kv_dtype, state_dtype: where they are said
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()  # how its config was read, and whether transformers refuses it

    def checkpoint_parts(self, total: int) -> dict[str, int]:
        """Split a checkpoint of `total` values of a model
        with prediction modules into parts, by name.

        A copy of embedding and head for each module where there is room for it; what is left, if
        anything, are others.
        """
        added = self.prediction
        parts = {
            "params": self.params,
            **self.buffers,
            **{name: added[name] for name in ("mtp_params", "mtp_buffers")},
        }
        left = total - sum(parts.values())
        copies = added["mtp_params_with_copies"] - added["mtp_params"]
        if left >= copies:
            parts["mtp_copies"] = copies
            left -= copies
        return {name: n for name, n in {**parts, OTHERS: left}.items() if n}

    def to_dict(self) -> Json:
        """Convert the figures to plain data, under their public names."""
        data = dict(vars(self))
        ends = {name: list(data.pop(name)) for name in ("warnings", "notes")}
        data |= {**data.pop("selection"), **data.pop("prediction")}
        run = {**self.workload.to_dict(), **(data.pop("kept") or {})}
        for name in ("least_active_params", "stored_bytes"):
            if data[name] is None:
                del data[name]
        return {**data, "workload": run, "source": "formula", **ends}


def fitted(spec: ModelSpec, workload: Workload | Request) -> Workload:
    """Return the workload as `spec` runs it:
    `source_len` is a number for an encoder-decoder, else None.

    A length that was left open is the default, or what the model can run if that is less. One that
    the model has no use for is an error, not ignored.

    >>> from metacount.catalog import entry
    >>> fitted(entry("bert-base").spec(), Request()).seq_len
    512
    """
    if isinstance(workload, Request):
        workload = workload.within(spec.longest)
    if workload.source_len is not None and not spec.has_encoder:
        remedy = f"leave it out for a model of kind {spec.kind}"
        raise SpecError("source_len", "belongs to an encoder-decoder", workload.source_len, remedy)
    if workload.prefix_len and spec.kind != "prefix-decoder":
        remedy = f"leave it out for a model of kind {spec.kind}"
        raise SpecError("prefix_len", "belongs to a prefix-decoder", workload.prefix_len, remedy)
    return Workload(
        batch_size=workload.batch_size,
        seq_len=workload.seq_len,
        dtype=workload.dtype,
        source_len=workload.encoder_len if spec.has_encoder else None,
        prefix_len=workload.prefix_len,
    )


def said_of_length(spec: ModelSpec, workload: Workload | Request) -> str:
    """Say why fewer tokens are run than the default; empty where nothing is to be said.

    >>> from metacount.catalog import entry
    >>> said_of_length(entry("bert-base").spec(), Request())
    'seq_len 512: all its positions'
    """
    if not isinstance(workload, Request) or workload.seq_len is not None:
        return ""
    n = fitted(spec, workload).seq_len
    return f"seq_len {n}: {ALL_POSITIONS}" if n == spec.longest else ""


def run_sizes(spec: ModelSpec, workload: Workload) -> dict[str, int]:
    """Return the sizes of a workload under the names that `QUANTITIES` take."""
    return {
        "batch_size": workload.batch_size,
        "seq_len": workload.seq_len,
        "kv_len": workload.seq_len,
        "source_len": workload.encoder_len if spec.has_encoder else 0,
        "prefix_len": workload.prefix_len,
        "bytes_per_value": DTYPE_BYTES[workload.dtype],
    }


def _of(count: Callable[..., dict[str, Dim]], sizes: str = "") -> Quantity:
    """Give a count, of which `sizes` of a run it takes by their names."""
    names = sizes.split()
    return lambda spec, run: count(spec, **{name: run[name] for name in names})


# By part. These are what `verify` compares, and proofs are recorded of.
QUANTITIES: dict[str, Quantity] = {
    "params": _of(model.params_by_role),
    "active_params": _of(model.active_params_by_role),
    "matmul_flops": _of(model.matmul_flops_by_role, "batch_size seq_len source_len"),
    "causal_matmul_flops": _of(
        model.causal_matmul_flops_by_role, "batch_size seq_len source_len prefix_len"
    ),
    "decode_matmul_flops": _of(model.decode_matmul_flops_by_role, "batch_size kv_len source_len"),
    "kv_cache_bytes": _of(
        model.kv_cache_bytes_by_part, "batch_size seq_len bytes_per_value source_len"
    ),
    "state_bytes": _of(model.state_bytes_by_part, "batch_size bytes_per_value"),
}


def count(
    spec: ModelSpec,
    workload: Workload | Request,
    *,
    notes: tuple[str, ...] = (),
    quantised: Json | None = None,
    cache_dtypes: dict[str, str] | None = None,
) -> Count:
    """Count `spec` running `workload`; `notes` are on the config that it was read from, which is
    `quantised` where it says how weights are packed. `cache_dtypes`: the dtypes of the KV cache and
    of recurrent states (`kv_dtype`, `state_dtype`), where they are other than the workload's.

    >>> from metacount.catalog import entry
    >>> llama = count(entry("llama-7b").spec(), Workload())
    >>> llama.params, llama.kv_cache_bytes
    (6738415616, 1073741824)
    """
    run = fitted(spec, workload)
    sizes = run_sizes(spec, run)
    width = sizes["bytes_per_value"]
    for name, dtype in (cache_dtypes or {}).items():
        check_dtype(name, dtype)
    of_cache, of_state = (
        sizes | {"bytes_per_value": DTYPE_BYTES[(cache_dtypes or {}).get(name, run.dtype)]}
        for name in ("kv_dtype", "state_dtype")
    )
    sizes_of = {"kv_cache_bytes": of_cache, "mtp_kv_cache_bytes": of_cache, "state_bytes": of_state}
    parts = {
        name: quantity(spec, sizes_of.get(name, sizes))
        for name, quantity in QUANTITIES.items()
        if name != "decode_matmul_flops" or spec.kind != "encoder"
    }
    total = {name: sum(stored_weights.values()) for name, stored_weights in parts.items()}
    selection, prediction = {}, {}  # few models have either: their formulas are loaded then
    if spec.n_index_heads is not None:
        from metacount.formulas.sublayers import attention_by_selection

        selection = attention_by_selection(spec, batch_size=run.batch_size, seq_len=run.seq_len)
    if spec.prediction is not None:
        from metacount.formulas.mtp import PREDICTION

        prediction = {
            name: sum(of(spec, sizes_of.get(name, sizes)).values())
            for name, of in PREDICTION.items()
        }
    stored = None
    if quantised is not None:
        from metacount.textbook.stored import stored_from_config

        stored_weights = stored_from_config(spec, quantised)
        stored = (
            None
            if stored_weights is None or isinstance(stored_weights, str)
            else stored_weights.n_bytes
        )
        sentence = (
            stored_weights
            if isinstance(stored_weights, str)
            else f"{'' if stored_weights is None else stored_weights.how}"
        )
        notes += (f"stored_bytes{' is not known' if stored is None else ''}: {sentence}",)
    return Count(
        **total,
        active_params_no_embed=model.active_params_no_embed(spec),
        by_role=parts["params"],
        active_by_role=parts["active_params"],
        buffers=model.buffers(spec),
        param_bytes=width * total["params"],
        workload=run,
        macs=total["matmul_flops"] // 2,
        kv_cache_bytes_per_token=model.kv_cache_bytes_per_token(
            spec, bytes_per_value=of_cache["bytes_per_value"]
        ),
        cross_kv_cache_bytes=parts["kv_cache_bytes"]["cross-attention"],
        least_active_params=model.least_active_params(spec) if spec.n_zero_experts else None,
        selection=selection,
        prediction=prediction,
        stored_bytes=stored,
        kept=cache_dtypes,
        warnings=_warnings(spec, run),
        notes=notes,
    )


def said_of_too_many(spec: ModelSpec, run: Workload) -> tuple[str, ...]:
    """Write a warning where a run is longer than the model has positions for."""
    longest = max(run.seq_len, run.source_len or 0)
    if spec.longest is None or longest <= spec.longest:
        return ()
    return (
        f"the model has {spec.longest} learned positions and cannot run {longest}; "
        "the counts go on as if it could",
    )


def said_of_states(spec: ModelSpec, dtype: str) -> tuple[str, ...]:
    """Write a warning where a module may keep a wider state than the formula counts."""
    if dtype != "fp64" or all(state.bytes_per_value is None for state in model.states(spec)):
        return ()
    return (
        "state_bytes: the formula counts the state of a recurrence in float32, whatever else is in "
        "fp64; a module in fp64 may keep it in fp64",
    )


def _warnings(spec: ModelSpec, run: Workload) -> tuple[str, ...]:
    sentences = [*said_of_too_many(spec, run), *said_of_states(spec, run.dtype)]
    if spec.window_kind == "chunked" and spec.window is not None and run.seq_len > spec.window:
        sentences.append(
            f"decode and KV cache take a chunk of {spec.window} positions at its fullest: an upper "
            "bound for layers with chunked attention"
        )
    return tuple(sentences)
