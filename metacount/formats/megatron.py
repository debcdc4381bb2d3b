"""Megatron-LM's arguments in a script or a file of them, as its pretrain_gpt.py understands them.

What sizes the model is read; what only runs or trains it is passed over; any other is an error.
"""

from __future__ import annotations

from metacount.errors import InputError, SpecError, shown
from metacount.formats.described import Described, spec_of
from metacount.formats.megatron_arguments import FLAGS, NEEDED, VALUES, values_of
from metacount.formats.megatron_experts import with_experts
from metacount.formats.shell import options
from metacount.huggingface.config.keys import Keys
from metacount.huggingface.config.parts import biases, divided
from metacount.spec.position import RopeScaling

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

NAMES = {
    "d_model": "--hidden-size",
    "n_layers": "--num-layers",
    "n_heads": "--num-attention-heads",
    "n_kv_heads": "--num-query-groups",
    "head_dim": "--kv-channels",
    "d_ff": "--ffn-hidden-size",
    "vocab_size": "--vocab-size",
    "n_positions": "--max-position-embeddings",
    "n_experts": "--num-experts",
    "top_k": "--moe-router-topk",
    "d_ff_expert": "--moe-ffn-hidden-size",
    "n_groups": "--moe-router-num-groups",
    "top_groups": "--moe-router-group-topk",
    "rotary_dim": "--rotary-percent",
}


def described(path: str) -> Described:
    """Read the model of a script, or of a file of arguments."""
    import re

    from metacount.files import read_text

    where = shown(path)
    text = read_text(path, "a script with Megatron-LM's arguments")
    other = re.search(r"\b(?:pre)?train_(?!gpt\b)\w+\.py\b", text)
    if other:
        raise InputError(
            f"{where}: runs {shown(other[0])}, whose model is another; those of "
            "pretrain_gpt.py are read"
        )
    given = options(text, where)
    if not given.keys() & set(NEEDED):
        raise InputError(
            f"{where}: has none of {', '.join(NEEDED)}; give a script with Megatron-LM's arguments"
        )
    data = values_of(given, where)
    for name in NEEDED:
        if name not in data:
            raise SpecError(name, "is missing", None, f"give {name}")
    return _described(Keys(data, {**VALUES, **dict.fromkeys(FLAGS, False)}, {}, "head"))


def _described(keys: Keys) -> Described:
    notes = ["Megatron-LM's arguments: read, nothing is run"]
    d_model, n_heads = keys.size("--hidden-size"), keys.size("--num-attention-heads")
    head_dim = keys.optional_size("--kv-channels")
    if head_dim is None:
        head_dim = divided("--num-attention-heads", d_model, n_heads)
    bias = not keys.flag("--disable-bias-linear")
    fields: Json = {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": keys.layers("--num-layers"),
        "vocab_size": _vocabulary(keys, notes),
        "tie_embeddings": not keys.flag("--untie-embeddings-and-output-weights"),
        "n_heads": n_heads,
        "n_kv_heads": _groups(keys, n_heads),
        "head_dim": head_dim,
        **biases(keys.flag("--add-qkv-bias") or bias, bias),
        "ffn_bias": bias,
        **_activation(keys, bias),
        **_norms(keys, notes),
        **_positions(keys, head_dim),
    }
    width = keys.optional_size("--ffn-hidden-size")
    if width is None:
        # two thirds of 4·d in 64s, where there is a gate
        width = int((4 * d_model * 2 / 3) / 64) * 64 if keys.flag("--swiglu") else 4 * d_model
        notes.append(f"--ffn-hidden-size {width}: what Megatron takes where it is not given")
    fields["d_ff"] = width
    return Described(spec=spec_of(with_experts(keys, fields, bias), NAMES), notes=tuple(notes))


def _vocabulary(keys: Keys, notes: list[str]) -> int:
    """Count the rows as stored: padded to a multiple that tensor parallelism is part of."""
    padded = keys.optional_size("--padded-vocab-size")
    multiple = keys.size("--make-vocab-size-divisible-by") * keys.size(
        "--tensor-model-parallel-size"
    )
    if padded is not None:
        keys.raw("--vocab-size")
        return padded
    if keys.raw("--vocab-size") is None:
        raise SpecError(
            "--vocab-size",
            "is missing, and a tokenizer is not opened",
            None,
            "give the number of its pieces",
        )
    size = keys.size("--vocab-size")
    rows = multiple * -(-size // multiple)
    if rows != size:
        notes.append(
            f"vocab_size {rows}: {size} padded to a multiple of {multiple}, which is "
            "--make-vocab-size-divisible-by · --tensor-model-parallel-size"
        )
    return rows


def _groups(keys: Keys, n_heads: int) -> int:
    if keys.flag("--group-query-attention"):
        return keys.size("--num-query-groups")
    if keys.given("--num-query-groups") not in (None, n_heads):
        raise SpecError(
            "--num-query-groups",
            "has no effect without --group-query-attention",
            keys.raw("--num-query-groups"),
            "add it",
        )
    return n_heads


def _activation(keys: Keys, bias: bool) -> Json:
    """Choose the activation: Megatron fuses bias and GELU
    by the tanh form, unless told otherwise.
    """
    fused = bias and not keys.flag("--no-bias-gelu-fusion")
    ways = {
        "--swiglu": {"activation": "silu", "gated": True},
        "--quick-geglu": {"activation": "silu", "swish_beta": 1.702, "gated": True},
        "--squared-relu": {"activation": "relu2", "gated": False},
        "--openai-gelu": {"activation": "gelu_tanh", "gated": False},
    }
    chosen = [name for name in ways if keys.flag(name)]
    if len(chosen) > 1:
        raise SpecError(chosen[0], f"does not go with {chosen[1]}", True, "leave one of them out")
    return (
        ways[chosen[0]]
        if chosen
        else {"activation": "gelu_tanh" if fused else "gelu", "gated": False}
    )


def _norms(keys: Keys, notes: list[str]) -> Json:
    kind = keys.only("--normalization", "LayerNorm", "RMSNorm")
    layernorm, less_one = kind == "LayerNorm", keys.flag("--apply-layernorm-1p")
    if less_one and layernorm:
        notes.append("--apply-layernorm-1p stores weights less 1: no count depends on it")
    each = ("layernorm" if layernorm else "head") if keys.flag("--qk-layernorm") else "none"
    return {
        "norm": "layernorm" if layernorm else "rmsnorm",
        "norm_bias": layernorm,
        "norm_unit_offset": less_one and not layernorm,
        "norm_eps": keys.number("--norm-epsilon"),
        "qk_norm": each,
    }


def _positions(keys: Keys, head_dim: int) -> Json:
    kind = keys.only("--position-embedding-type", "learned_absolute", "rope", "none")
    n_positions = keys.size("--max-position-embeddings")
    if keys.flag("--use-rotary-position-embeddings"):
        kind = "rope"
    if keys.flag("--no-position-embedding") and kind != "rope":
        raise SpecError(
            "--no-position-embedding",
            "goes with rope alone",
            True,
            "write --position-embedding-type none",
        )
    base, percent = keys.number("--rotary-base"), keys.number("--rotary-percent")
    scaled, factor = keys.flag("--use-rope-scaling"), keys.number("--rope-scaling-factor")
    style = "interleaved" if keys.flag("--rotary-interleaved") else "half"
    if kind != "rope":
        learned = {"position": "learned", "n_positions": n_positions}
        return learned if kind == "learned_absolute" else {"position": "none"}
    turned = int(head_dim * percent)
    if percent > 1 or turned < 2:
        raise SpecError(
            "--rotary-percent", f"leaves {turned} of {head_dim}", percent, "choose above 0 to 1"
        )
    stretch = keys.optional_number("--rotary-seq-len-interpolation-factor")
    if scaled and stretch:
        raise SpecError(
            "--rotary-seq-len-interpolation-factor",
            "does not go with --use-rope-scaling here",
            stretch,
            "leave one of them out",
        )
    scaling = None
    if scaled:
        scaling = RopeScaling(
            kind="llama3", factor=factor, n_trained=8192, low_freq_factor=1.0, high_freq_factor=4.0
        )
    elif stretch:
        scaling = RopeScaling(kind="linear", factor=stretch)
    return {
        "position": "rope",
        "rope_theta": base,
        "rope_style": style,
        "rotary_dim": None if turned == head_dim else turned,
        **({} if scaling is None else {"rope_scaling": scaling.to_dict()}),
    }
