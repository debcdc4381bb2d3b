"""Every figure of a model once: its name, its unit, what it means, which models have it.

Texts, tables, `--columns`, `diff`, `formula`, `check`, pictures, the page and the README read it.
"""

from __future__ import annotations

from metacount import units
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VALUES, BYTES, FLOPS, MACS = "values", "bytes", "FLOP", "MAC"
SHORTENED: dict[str, Callable[[int], str]] = {
    VALUES: units.short,
    BYTES: units.gib,
    FLOPS: units.flops,
    MACS: units.macs,
}
MTP = "multi-token-prediction modules"
INDEX = "an indexer of attention"


@frozen
class Figure:
    """One quantity: its unit, its meaning in a few words beside its name and in a whole line.

    `run`: the letters of a workload that it depends on: B sequences, S tokens of each, T positions
    before a new token, c bytes of a value. `has`: what a model without it lacks; "" of all models.
    """

    unit: str
    brief: str
    meaning: str
    run: str = ""
    has: str = ""

    @property
    def short(self) -> Callable[[int], str]:
        """What writes a value of it in three digits and a unit."""
        return SHORTENED[self.unit]


def _figure(unit: str, brief: str, meaning: str, run: str = "", has: str = "") -> Figure:
    return Figure(unit=unit, brief=brief, meaning=meaning, run=run, has=has)


# What `count` prints, in its order.
COUNTED = {
    "params": _figure(
        VALUES, "stored, tied ones once", "distinct stored parameters, tied ones once"
    ),
    "active_params": _figure(
        VALUES, "used for one token", "parameters used for one token, input embedding included"
    ),
    "least_active_params": _figure(
        VALUES,
        "with zero experts alone",
        "parameters used for one token that goes to zero experts as far as it can",
        has="zero experts",
    ),
    "active_params_no_embed": _figure(
        VALUES,
        "less an untied token table",
        "active_params without the token table, unless it is tied: then the head uses it",
    ),
    "text_params": _figure(
        VALUES,
        "of the text part alone",
        "parameters of the text part alone, of a model that reads more than text",
        has="parts that are not of text",
    ),
    "text_active_params": _figure(
        VALUES,
        "used for one token of text",
        "parameters used for one token of text, of a model that reads more than text",
        has="parts that are not of text",
    ),
    "param_bytes": _figure(BYTES, "of all parameters", "bytes of all parameters", run="c"),
    "matmul_flops": _figure(
        FLOPS,
        "forward, all pairs",
        "FLOPs of a forward: matrix products, 2 per multiply-add, attention in full",
        run="BS",
    ),
    "causal_matmul_flops": _figure(
        FLOPS,
        "forward, as masked",
        "matmul_flops with attention over exactly the pairs that the mask keeps",
        run="BS",
    ),
    "macs": _figure(
        MACS, "half of matmul_flops", "multiply-adds of a forward: half of matmul_flops", run="BS"
    ),
    "decode_matmul_flops": _figure(
        FLOPS,
        "one more token",
        "FLOPs of one more token per sequence, attending to T positions, itself included",
        run="BT",
    ),
    "kv_cache_bytes_per_token": _figure(
        BYTES,
        "one token, all layers",
        "bytes that one token writes into the KV caches of all layers",
        run="c",
    ),
    "kv_cache_bytes": _figure(
        BYTES,
        "kept after seq tokens",
        "bytes of keys and values kept after S tokens of every sequence",
        run="BSc",
    ),
    "cross_kv_cache_bytes": _figure(
        BYTES,
        "by cross-attention",
        "bytes of kv_cache_bytes that cross-attention keeps",
        run="BSc",
        has="cross-attention",
    ),
    "state_bytes": _figure(
        BYTES,
        "however many tokens",
        "bytes of recurrent and convolution states kept between tokens, however many",
        run="Bc",
        has="recurrent or convolution states",
    ),
    "dense_attention_flops": _figure(
        FLOPS,
        "over all it may see",
        "FLOPs of attention's products over all positions that a token may see",
        run="BS",
        has=INDEX,
    ),
    "selected_attention_flops": _figure(
        FLOPS,
        "over what it selects",
        "FLOPs of attention's products over the positions that the index leaves",
        run="BS",
        has=INDEX,
    ),
    "index_flops": _figure(
        FLOPS, "the index itself", "FLOPs of the index itself", run="BS", has=INDEX
    ),
    "mtp_params": _figure(
        VALUES,
        "without what they share",
        "parameters of the multi-token-prediction modules, apart from the model's",
        has=MTP,
    ),
    "mtp_params_with_copies": _figure(
        VALUES,
        "with copies of it",
        "mtp_params with a copy of the embedding and of the head in each module",
        has=MTP,
    ),
    "mtp_active_params": _figure(
        VALUES,
        "for one token",
        "parameters of the prediction modules that one token uses",
        has=MTP,
    ),
    "mtp_active_params_with_shared": _figure(
        VALUES,
        "with what they share",
        "mtp_active_params with the embedding and the head, which they share",
        has=MTP,
    ),
    "mtp_buffers": _figure(
        VALUES,
        "selection biases",
        "values of the prediction modules that are no parameters: selection biases",
        has=MTP,
    ),
    "mtp_matmul_flops": _figure(
        FLOPS,
        "forward, with the head",
        "FLOPs of a forward of the prediction modules, the shared head included",
        run="BS",
        has=MTP,
    ),
    "mtp_matmul_flops_no_head": _figure(
        FLOPS,
        "without it",
        "FLOPs of a forward of the prediction modules, without the shared head",
        run="BS",
        has=MTP,
    ),
    "mtp_causal_matmul_flops": _figure(
        FLOPS,
        "as masked, with the head",
        "mtp_matmul_flops with attention over the pairs that the mask keeps",
        run="BS",
        has=MTP,
    ),
    "mtp_decode_matmul_flops": _figure(
        FLOPS,
        "one more position",
        "FLOPs of one more position in every prediction module",
        run="BT",
        has=MTP,
    ),
    "mtp_kv_cache_bytes": _figure(
        BYTES,
        "kept after seq tokens",
        "bytes that the prediction modules keep after S tokens of every sequence",
        run="BSc",
        has=MTP,
    ),
}
# What `train` says of a step beside these.
OF_A_STEP = {
    "backward_matmul_flops": _figure(
        FLOPS,
        "backward",
        "FLOPs of the backward of a training step, all parameters trained",
        run="BS",
    ),
    "train_matmul_flops": _figure(
        FLOPS,
        "forward and backward",
        "FLOPs of the forward and the backward of a training step, nothing computed twice",
        run="BS",
    ),
    "recompute_matmul_flops": _figure(
        FLOPS,
        "computed a second time",
        "FLOPs that full checkpointing computes a second time",
        run="BS",
    ),
    "activation_bytes": _figure(
        BYTES,
        "kept for the backward",
        "bytes of distinct storages that autograd keeps for the backward",
        run="BSc",
    ),
    "gradient_bytes": _figure(
        BYTES, "of the gradients", "bytes of the gradients of all parameters", run="c"
    ),
    "optimizer_bytes": _figure(
        BYTES,
        "state of the optimizer",
        "bytes of the tensors that the optimizer keeps between steps",
        run="c",
    ),
    "peak_bytes": _figure(
        BYTES,
        "at the peak",
        "peak memory of a training step: the most bytes of tensors that are alive at once",
        run="BSc",
    ),
}
FIGURES = {**COUNTED, **OF_A_STEP}
OF_MTP = tuple(name for name, figure in COUNTED.items() if figure.has == MTP)


def is_shown(name: str, values: Iterable[int | None]) -> bool:
    """Tell whether a figure is shown: what few models have is left out where no value is above 0.

    >>> is_shown("params", [0]), is_shown("state_bytes", [0, None]), is_shown("state_bytes", [7])
    (True, False, True)
    """
    return not FIGURES[name].has or any(values)
