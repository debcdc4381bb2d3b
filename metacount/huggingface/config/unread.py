"""Keys of published configs that no row reads: passed over where they change nothing.

A key changes nothing if it says that something is absent (false, null, 0, a list of equal entries),
scales by 1.0, or says what the other keys say anyway. One that says something else than is read is
refused with what is read.
"""

from __future__ import annotations

from metacount.errors import shown_name
from metacount.huggingface.config.keys import ACTIVATIONS, UnmappedKey, as_json, is_number, same

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.huggingface.config.keys import Keys
    from metacount.spec import ModelSpec

MOST = 12  # keys that are named
ANY: object = object()  # where nothing is rotated, how is of no matter
# Keys of several families -> what they would say of a spec's fields; the legend has those of sizes.
MEANINGS: tuple[tuple[str, Callable[[Json], object]], ...] = (
    ("attention_bias qkv_bias use_qkv_bias add_qkv_bias", lambda s: s["q_bias"]),
    ("attention_out_bias attention_output_bias o_bias", lambda s: s["o_bias"]),
    ("mlp_bias ffn_bias", lambda s: s["ffn_bias"]),
    ("use_bias bias add_bias_linear", lambda s: s["q_bias"] or s["o_bias"] or s["ffn_bias"]),
    ("no_bias", lambda s: not (s["q_bias"] or s["o_bias"] or s["ffn_bias"])),
    ("lm_head_bias", lambda s: s["head_bias"]),
    ("use_qk_norm qk_layernorm use_qk_layernorm qk_norm", lambda s: s["qk_norm"] != "none"),
    ("qk_norm_type", lambda s: {"head": "per_head", "full": "per_layer"}.get(s["qk_norm"])),
    ("attn_output_gate attention_output_gate", lambda s: s["output_gate"]),
    ("attention_head_dim", lambda s: s["head_dim"]),
    ("use_gemma_norm", lambda s: s["norm_unit_offset"]),
    ("use_routing_bias", lambda s: s["selection_bias"]),
    ("tie_word_embeddings tie_embeddings", lambda s: s["tie_embeddings"]),
    ("use_sliding_window", lambda s: s["window"] is not None),
    ("layer_types", lambda s: _kinds(s)),
    ("attention_sinks add_swa_attention_sink_bias", lambda s: s["attention_sinks"]),
    ("norm_topk_prob moe_renormalize", lambda s: s["router"].endswith("_renorm")),
    ("scoring_func", lambda s: s["router"].removesuffix("_renorm")),
    ("routed_scaling_factor", lambda s: s["routed_scale"]),
    ("attn_logit_softcapping", lambda s: s["attention_softcap"]),
    ("final_logit_softcapping", lambda s: s["logit_softcap"]),
    (
        "norm_eps rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon",
        lambda s: s["norm_eps"],
    ),
    ("rope_theta rotary_emb_base", lambda s: s["rope_theta"] if s["position"] == "rope" else ANY),
    ("partial_rotary_factor rotary_pct rotary_percent", lambda s: _share(s)),
    ("hidden_act hidden_activation activation_function", lambda s: s["activation"]),
)
OF_KEY = {key: meaning for keys, meaning in MEANINGS for key in keys.split()}
_of_size: dict[str, list[str]] = {}  # by a key, the fields that it is another name of; made once


def _sizes() -> dict[str, list[str]]:
    if not _of_size:
        from metacount.spec.legend import MODEL_TERMS

        for term in MODEL_TERMS:
            for key in (term.name, *term.elsewhere):
                _of_size.setdefault(key, []).append(term.name)
    return _of_size


def _share(spec: Json) -> object:
    if spec["position"] != "rope":
        return ANY
    return 1.0 if spec["rotary_dim"] is None else spec["rotary_dim"] / spec["head_dim"]


def _kinds(spec: Json) -> object:
    """List the kinds of a model's layers where all are alike; else nothing says them."""
    windowed = spec["window"] is not None
    kind = "sliding_attention" if windowed else "full_attention"
    plain = spec["mixer_pattern"] == "A" and (not windowed or spec["window_pattern"] == "L")
    return [kind] * spec["n_layers"] if plain else None


def says_nothing(value: object) -> bool:
    """Tell whether a value says that something is absent, or scales by 1.0.

    >>> [says_nothing(value) for value in (False, None, 0, 1.0, {}, [], [1, 1], "x", 1, [1, 2])]
    [True, True, True, True, True, True, True, False, False, False]
    """
    if isinstance(value, list):
        return all(same(item, value[0]) for item in value)
    absent = value is None or value is False or value == {}
    return absent or (is_number(value) and value == 0) or (isinstance(value, float) and value == 1)


def may_say_nothing(key: str, value: object) -> bool:
    """Tell whether a key that no row reads may be one that changes nothing."""
    return says_nothing(value) or key in OF_KEY or key in _sizes()


def pass_over(keys: Keys, spec: ModelSpec) -> tuple[str, ...]:
    """Note the keys that no row reads in one line, and return them.

    Raises `UnmappedKey` for one that says something else than the spec.
    """
    if not keys.unread:
        return ()
    fields = spec.to_dict()
    for key, value in keys.unread.items():
        meant = [fields[name] for name in _sizes().get(key, ())]
        if key in OF_KEY:
            meant.append(OF_KEY[key](fields))
        if value is None or not meant or any(_agree(value, read) for read in meant):
            continue
        read = next((m for m in meant if m is not None), None)
        remedy = f"{'none' if read is None else as_json(read)} is read: remove it"
        raise UnmappedKey(key, "is not read by this type, and says something else", value, remedy)
    texts = [f"{shown_name(key)}={as_json(value)}" for key, value in keys.unread.items()]
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    keys.notes.append(f"passed over, for they change nothing: {', '.join(texts[:MOST])}{more}")
    return tuple(keys.unread)


def _agree(value: object, read: object) -> bool:
    """Tell whether a key says what is read; where nothing is, it may be 0, false or null."""
    if read is ANY or same(value, read):
        return True
    if not read:
        return not value
    return isinstance(value, str) and ACTIVATIONS.get(value) == read
