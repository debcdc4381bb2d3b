"""Counts multi-token-prediction modules: what they add to a model, apart from it.

A module norms the model's hidden state and the next token's embedding, projects the two side by
side to d, and puts a layer of its own, a norm and the model's head behind it. Embedding and head
are the model's: a module stores none, though some checkpoints hold copies.

>>> from metacount.catalog import entry
>>> spec = entry("deepseek-v3").spec()
>>> params_by_role(spec)  # doctest: +NORMALIZE_WHITESPACE
{'embedding': 0, 'position': 0, 'attention': 187105280, 'recurrent': 0, 'ffn': 0,
 'moe': 11320164352, 'norm': 37888, 'head': 0, 'other': 102760448}
>>> params(spec), sum(active_params_by_role(spec).values()), buffers(spec)
(11610067968, 688100352, {'selection_bias': 256})
>>> shared_params(spec)  # of which each module of DeepSeek-V3's checkpoint has a copy
1853358080
>>> sum(matmul_flops_by_role(spec, batch_size=1, seq_len=128).values())
414716002304
>>> kv_cache_bytes_by_part(spec, batch_size=1, seq_len=2048, bytes_per_value=2)
{'self-attention': 2359296}
"""

from __future__ import annotations

from metacount.formulas import model
from metacount.formulas.block import Given
from metacount.formulas.dim import Dim
from metacount.formulas.model import ROLES
from metacount.formulas.pieces import (
    Piece,
    Sizes,
    block_pieces,
    products_of_pieces,
    remembered,
    run_of,
    stream,
    weights_of_pieces,
)
from metacount.formulas.sublayers import end_products, end_weights
from metacount.formulas.tape import TOKENS, Product, Tape, Weight, by_role, params_of
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
    run = run_of(own, Sizes(batch_size=2, seq_len=2, decode=decode))
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
    rows = (one.size for one in end_weights(spec) if one.role == "head" and one.rows)
    return sum(rows) + sum(one.width for one in end_products(spec))


def shared_params(spec: ModelSpec) -> Dim:
    """Count the parameters of embedding and head, which modules share with the model."""
    return params_of(one for one in end_weights(spec) if one.role in ("embedding", "head"))


def params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters of the modules by role, without the shared embedding and head.

    Returns: every role in order; 0 without modules.
    Source: `module_weights`.
    """
    return by_role(module_weights(spec), lambda one: one.params, ROLES)


def params(spec: ModelSpec) -> Dim:
    """Count the parameters of the modules. See `params_by_role`."""
    return params_of(module_weights(spec))


def active_params_by_role(spec: ModelSpec) -> dict[str, Dim]:
    """Count the parameters of the modules that one token uses, without embedding and head.

    Returns: every role in order.
    Source: `module_weights`.
    """
    return by_role(module_weights(spec), lambda one: one.active, ROLES)


def buffers(spec: ModelSpec) -> dict[str, Dim]:
    """Count stored values of the modules that are no parameters: their selection biases.

    Source: `model.buffers`.
    """
    if spec.prediction is None:
        return {"selection_bias": 0}
    own = prediction_layers(spec)
    mixture = own.last_stack.mixture
    if mixture is None or not mixture.selection_bias:
        return {"selection_bias": 0}
    return {"selection_bias": own.last_stack.n_layers * mixture.n_experts}


def matmul_flops_by_role(spec: ModelSpec, *, batch_size: Dim, seq_len: Dim) -> dict[str, Dim]:
    """Count FLOPs of a forward of the modules by role, attention in full, the head included.

    Each module reads seq_len hidden states and as many next tokens, and gives as many logits.

    Returns: every role in order, exact.
    Source: `module_weights`, `module_products`.
    Not counted: what `model.matmul_flops_by_role` does not count; the model itself.
    """
    return _flops_by_role(spec, model.forward_run(spec, batch_size=batch_size, seq_len=seq_len))


def causal_matmul_flops_by_role(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim
) -> dict[str, Dim]:
    """Count FLOPs of a forward of the modules by role, over the pairs that the mask keeps.

    Returns: every role in order, exact.
    Source: `matmul_flops_by_role`, with the pairs of `attention.self_attention_pairs`.
    Not counted: as there.
    """
    pairs = model.kept_pairs(spec, seq_len, 0)
    run = model.forward_run(spec, batch_size=batch_size, seq_len=seq_len, pairs=pairs)
    return _flops_by_role(spec, run)


def decode_matmul_flops_by_role(spec: ModelSpec, *, batch_size: Dim, kv_len: Dim) -> dict[str, Dim]:
    """Count FLOPs by role of one more position in every module, attending to kv_len ones.

    Returns: every role in order, exact.
    Source: `matmul_flops_by_role`, with one query per sequence; MLA in its absorbed form.
    Not counted: as there.
    """
    run = model.decode_run(spec, batch_size=batch_size, kv_len=kv_len, source_len=0)
    return _flops_by_role(spec, run, decode=True)


def kv_cache_bytes_by_part(
    spec: ModelSpec, *, batch_size: Dim, seq_len: Dim, bytes_per_value: Dim
) -> dict[str, Dim]:
    """Count bytes of keys and values that the modules keep after seq_len tokens, by kind.

    Returns: bytes of self-attention, the only kind that such a layer has.
    Source: `model.kv_cache_bytes` of those layers.
    """
    if spec.prediction is None:
        return {"self-attention": 0}
    kept = model.kv_cache_bytes(
        prediction_layers(spec),
        batch_size=batch_size,
        seq_len=seq_len,
        bytes_per_value=bytes_per_value,
    )
    return {"self-attention": kept}


def _flops_by_role(spec: ModelSpec, run: dict[str, Dim], *, decode: bool = False) -> dict[str, Dim]:
    terms: tuple[Weight | Product, ...] = (
        *module_weights(spec),
        *module_products(spec, decode=decode),
    )
    return by_role(terms, lambda term: term.flops(run), ROLES)


def _shared(spec: ModelSpec, copies: Dim) -> dict[str, Dim]:
    """Count so many copies of the embedding and of the head."""
    if spec.prediction is None:
        return {}
    head = copies * model.params_by_role(spec)["head"]
    return {"embedding": copies * shared_params(spec) - head, "head": head}


def with_copies(spec: ModelSpec) -> dict[str, Dim]:
    """Count a copy of embedding and head in each module, as DeepSeek-V3's README_WEIGHTS says."""
    n = 0 if spec.prediction is None else spec.prediction.n_modules
    return params_by_role(spec) | _shared(spec, n)


def _forward(spec: ModelSpec, run: Mapping[str, Dim]) -> dict[str, Dim]:
    sizes = {"batch_size": run["batch_size"], "seq_len": run["seq_len"]}
    return matmul_flops_by_role(spec, **sizes)


# What the modules add to a model, by part; nothing in it is in a figure of the model itself.
PREDICTION: dict[str, Callable[[ModelSpec, Mapping[str, Dim]], dict[str, Dim]]] = {
    "mtp_params": lambda spec, _: params_by_role(spec),
    "mtp_params_with_copies": lambda spec, _: with_copies(spec),
    "mtp_active_params": lambda spec, _: active_params_by_role(spec),
    "mtp_active_params_with_shared": lambda spec, _: active_params_by_role(spec) | _shared(spec, 1),
    "mtp_buffers": lambda spec, _: {"moe": sum(buffers(spec).values())},
    "mtp_matmul_flops": _forward,
    "mtp_matmul_flops_no_head": lambda spec, run: _forward(spec, run) | {"head": 0},
    "mtp_causal_matmul_flops": lambda spec, run: causal_matmul_flops_by_role(
        spec, batch_size=run["batch_size"], seq_len=run["seq_len"]
    ),
    "mtp_decode_matmul_flops": lambda spec, run: decode_matmul_flops_by_role(
        spec, batch_size=run["batch_size"], kv_len=run["kv_len"]
    ),
    "mtp_kv_cache_bytes": lambda spec, run: kv_cache_bytes_by_part(
        spec,
        batch_size=run["batch_size"],
        seq_len=run["seq_len"],
        bytes_per_value=run["bytes_per_value"],
    ),
}
