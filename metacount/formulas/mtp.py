"""Counts multi-token-prediction modules: what they add to a model, apart from it.

A module norms the model's hidden state and the next token's embedding, projects the two side by
side to d, and puts a layer of its own, a norm and the model's head behind it. Embedding and head
are the model's: a module stores none, though some checkpoints hold copies.

>>> from metacount.catalog import entry
>>> spec = entry("deepseek-v3").spec()
>>> params_by_role(spec)  # doctest: +NORMALIZE_WHITESPACE
{'embedding': 0, 'position': 0, 'attention': 187105280, 'recurrent': 0, 'ffn': 0,
 'moe': 11320164352, 'norm': 37888, 'head': 0, 'other': 102760448}
>>> params(spec), shared_params(spec)  # each module of its checkpoint has a copy of the latter
(11610067968, 1853358080)
>>> run = {"batch_size": 1, "seq_len": 128, "kv_len": 128, "bytes_per_value": 2}
>>> sum(PREDICTION["mtp_matmul_flops"](spec, run).values())
414716002304
>>> PREDICTION["mtp_buffers"](spec, run), PREDICTION["mtp_kv_cache_bytes"](spec, run)
({'moe': 256}, {'self-attention': 147456})
"""

from __future__ import annotations

from metacount.formulas import model
from metacount.formulas.block import Given
from metacount.formulas.dim import Dim
from metacount.formulas.model import ROLES
from metacount.formulas.pieces import (
    Piece,
    block_pieces,
    products_of_pieces,
    remembered,
    run_of,
    stream,
    weights_of_pieces,
)
from metacount.formulas.sublayers import end_products, end_weights
from metacount.formulas.tape import TOKENS, Pass, Product, Tape, Weight, by_role, params_of
from metacount.spec import ModelSpec
from metacount.spec.model import prediction_layers

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _pieces(spec: ModelSpec, *, decode: bool = False) -> list[Piece]:
    """Record the modules: what stands around each layer, and the layer.

    enorm [d], hnorm [d], eh_proj [d, 2·d], a layer, norm [d]: for each of N_p modules

    Source: DeepSeek-V3, arXiv:2412.19437, sec. 2.2, eq. 21 to 23; the names, its checkpoint's.
    """
    if spec.prediction is None:
        return []
    own = prediction_layers(spec)
    stack = own.last_stack
    run = run_of(own, Pass(batch_size=2, seq_len=2, decode=decode))
    tape = Tape(run)
    x = stream(tape, spec, TOKENS)
    for name in ("enorm", "hnorm"):
        x = tape.norm(x, name, stack.norms)
    tape.role = "other"
    both = tape.record("cat", tape.like(x, columns=2 * spec.d_model))
    tape.norm(tape.linear(both, "eh_proj", spec.d_model), "norm", stack.norms)
    around = Piece(times=stack.n_layers, tape=tape, place="around")
    return [around, *block_pieces(own, stack, run, Given())]


def module_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """List the tensors of all modules, without the embedding and the head that they share."""
    made = remembered(spec, "mtp weights", lambda: weights_of_pieces(spec, _pieces(spec)))
    return tuple(made)


def module_products(spec: ModelSpec, *, decode: bool = False) -> tuple[Product, ...]:
    """List the modules' other products: those of attention, and of the shared head for each.

    Source: DeepSeek-V3, arXiv:2412.19437, sec. 2.2 (shared head).
    """
    if spec.prediction is None:
        return ()
    head = Product(role="head", name="shared head", width=head_params(spec), per=TOKENS)
    products = products_of_pieces(_pieces(spec, decode=decode))
    return (*products, head.repeated(spec.prediction.n_modules))


def head_params(spec: ModelSpec) -> Dim:
    """Count the values of the matrices between the last norm and the logits, tied or not."""
    rows = (weight.size for weight in end_weights(spec) if weight.role == "head" and weight.rows)
    return sum(rows) + sum(weight.width for weight in end_products(spec))


def shared_params(spec: ModelSpec) -> Dim:
    """Count the parameters of embedding and head, which modules share with the model."""
    return params_of(weight for weight in end_weights(spec) if weight.role in ("embedding", "head"))


def params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters of the modules by role, without the shared embedding and head."""
    return by_role(module_weights(spec), lambda weight: weight.params, ROLES)


def params(spec: ModelSpec) -> Dim:
    """Count the parameters of the modules. See `params_by_role`."""
    return params_of(module_weights(spec))


def with_copies(spec: ModelSpec) -> dict[str, Dim]:
    """Count a copy of embedding and head in each module, as DeepSeek-V3's README_WEIGHTS says."""
    n = 0 if spec.prediction is None else spec.prediction.n_modules
    return params_by_role(spec) | _shared(spec, n)


def _shared(spec: ModelSpec, copies: Dim) -> dict[str, Dim]:
    """Count so many copies of the embedding and of the head."""
    if spec.prediction is None:
        return {}
    head = copies * model.params_by_role(spec)["head"]
    return {"embedding": copies * shared_params(spec) - head, "head": head}


def _active(spec: ModelSpec, _: Mapping[str, Dim]) -> dict[str, Dim]:
    return by_role(module_weights(spec), lambda weight: weight.active, ROLES)


def _buffers(spec: ModelSpec, _: Mapping[str, Dim]) -> dict[str, Dim]:
    if spec.prediction is None:
        return {"moe": 0}
    return {"moe": model.buffers(prediction_layers(spec))["selection_bias"]}


def _flops(spec: ModelSpec, counts: Mapping[str, Dim], *, decode: bool = False) -> dict[str, Dim]:
    """Count FLOPs by role, the head included: a module gives as many logits as it reads tokens."""
    products = module_products(spec, decode=decode)
    terms: tuple[Weight | Product, ...] = (*module_weights(spec), *products)
    return by_role(terms, lambda term: term.flops(counts), ROLES)


def _forward(
    spec: ModelSpec, run: Mapping[str, Dim], pairs: tuple[Dim, Dim] | None = None
) -> dict[str, Dim]:
    sizes = {"batch_size": run["batch_size"], "seq_len": run["seq_len"]}
    return _flops(spec, model.forward_run(spec, **sizes, pairs=pairs))


def _decode(spec: ModelSpec, run: Mapping[str, Dim]) -> dict[str, Dim]:
    sizes = {"batch_size": run["batch_size"], "kv_len": run["kv_len"]}
    return _flops(spec, model.decode_run(spec, **sizes), decode=True)


def _cache(spec: ModelSpec, run: Mapping[str, Dim]) -> dict[str, Dim]:
    """Count bytes of keys and values; such a layer has no other attention than to itself."""
    if spec.prediction is None:
        return {"self-attention": 0}
    sizes = {name: run[name] for name in ("batch_size", "seq_len", "bytes_per_value")}
    return {"self-attention": model.kv_cache_bytes(prediction_layers(spec), **sizes)}


# What the modules add to a model, by part; nothing in it is in a figure of the model itself, which
# says what is not counted.
PREDICTION: dict[str, Callable[[ModelSpec, Mapping[str, Dim]], dict[str, Dim]]] = {
    "mtp_params": lambda spec, _: params_by_role(spec),
    "mtp_params_with_copies": lambda spec, _: with_copies(spec),
    "mtp_active_params": _active,
    "mtp_active_params_with_shared": lambda spec, run: _active(spec, run) | _shared(spec, 1),
    "mtp_buffers": _buffers,
    "mtp_matmul_flops": _forward,
    "mtp_matmul_flops_no_head": lambda spec, run: _forward(spec, run) | {"head": 0},
    "mtp_causal_matmul_flops": lambda spec, run: _forward(
        spec, run, model.kept_pairs(spec, run["seq_len"], 0)
    ),
    "mtp_decode_matmul_flops": _decode,
    "mtp_kv_cache_bytes": _cache,
}
