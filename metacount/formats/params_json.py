"""Meta's and Mistral's params.json: sizes of the code that they publish beside their weights.

transformers has the same models under names of its own, so that its module is a witness.
"""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.formats import Described
from metacount.huggingface.config.keys import Keys, words
from metacount.huggingface.config.parts import divided

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

SENTENCEPIECE = 32000  # pieces of the tokenizer of LLaMA and Llama 2, where the file says -1

# transformers' names -> those of the file
NAMES = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "rms_norm_eps": "norm_eps",
    "intermediate_size": "hidden_dim",
    "num_local_experts": "num_experts",
    "sliding_window": "sliding_window",
}
# Of how the model is run, not of what it is.
RUN = words(
    "max_batch_size max_seq_len max_position_embeddings model_parallel_size causal tokenizer_path"
)
META_DEFAULTS: Json = {
    "n_kv_heads": None,
    "vocab_size": -1,
    "multiple_of": 256,
    "ffn_dim_multiplier": None,
    "norm_eps": 1e-5,
    "rope_theta": None,
    "use_scaled_rope": False,
    "rope_scaling_factor": None,
    "rope_high_freq_factor": None,
}
MISTRAL_DEFAULTS: Json = {
    "rope_theta": None,
    "sliding_window": None,
    "moe": None,
    "use_biases": False,
    "tied_embeddings": False,
    "model_type": "transformer",
}


def described(data: Json) -> Described:
    """Translate a params.json into the config of transformers that means the same model.

    >>> found = described({"dim": 4096, "n_layers": 32, "n_heads": 32, "multiple_of": 256,
    ...                    "norm_eps": 1e-6, "vocab_size": -1})
    >>> found.config["intermediate_size"], found.config["vocab_size"]
    (11008, 32000)
    """
    if "multiple_of" in data and "hidden_dim" in data:
        rule = "is Mistral's word and multiple_of Meta's: both size the feed-forward"
        raise SpecError("hidden_dim", rule, data["hidden_dim"], "leave one of them out")
    if "hidden_dim" not in data and "multiple_of" not in data:
        rule = "is missing (Meta), and so is hidden_dim (Mistral)"
        rule += ": the width of the feed-forward is not said"
        raise SpecError("multiple_of", rule, None, "give one")
    return _mistral(data) if "hidden_dim" in data else _meta(data)


def _meta(data: Json) -> Described:
    """Read Meta's keys, LLaMA to Llama 3: the feed-forward's width follows from dim."""
    keys = Keys(data, {**META_DEFAULTS}, {}, "head")
    dim, n_heads = _needed(keys, "dim"), _needed(keys, "n_heads")
    divided("n_heads", dim, n_heads)
    vocab_size, notes = _vocabulary(keys)
    config = {
        "model_type": "llama",
        "hidden_size": dim,
        "num_hidden_layers": keys.layers("n_layers"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": keys.optional_size("n_kv_heads"),
        "intermediate_size": _width(keys, dim),
        "vocab_size": vocab_size,
        "rms_norm_eps": keys.number("norm_eps"),
        "rope_theta": keys.optional_number("rope_theta") or 10000.0,
    }
    factor, high = (keys.optional_number(f"rope_{n}_factor") for n in ("scaling", "high_freq"))
    if keys.flag("use_scaled_rope"):
        # what Meta's code takes where the file does not say it
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": factor or 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": high or 4.0,
            "original_max_position_embeddings": 8192,
        }
    keys.finish(RUN, kind="decoder")
    rule = "by its rule from dim, multiple_of and ffn_dim_multiplier"
    width = f"Meta's params.json: d_ff {config['intermediate_size']} {rule}"
    untied = "params.json does not say whether the head is tied"
    untied += ": it is counted apart, as Meta's code has it"
    return Described(config=config, names=NAMES, notes=(width, *notes, untied))


def _vocabulary(keys: Keys) -> tuple[int, list[str]]:
    """Read the vocabulary: -1 is the number of the tokenizer's pieces,
    known for LLaMA and Llama 2.
    """
    if keys.raw("vocab_size") != -1:
        return keys.size("vocab_size"), []
    if keys.given("rope_theta") is not None:
        rule = "of -1 is the tokenizer's, and with rope_theta (Code Llama) there are several"
        raise SpecError("vocab_size", rule, -1, "write the number of its pieces")
    known = f"the tokenizer's, {SENTENCEPIECE} pieces in LLaMA and Llama 2"
    return SENTENCEPIECE, [f"vocab_size -1 is {known}"]


def _width(keys: Keys, dim: int) -> int:
    """Compute two thirds of 4·dim, times the multiplier,
    each cut to a whole number, then rounded up.
    """
    width = int(2 * (4 * dim) / 3)
    factor, multiple = keys.optional_number("ffn_dim_multiplier"), keys.size("multiple_of")
    if factor is not None:
        width = int(factor * width)
    return multiple * -(-width // multiple)


def _mistral(data: Json) -> Described:
    """Read Mistral's keys, of Mistral 7B, Mixtral and their kin: every width is written down."""
    keys = Keys(data, {**MISTRAL_DEFAULTS}, {}, "head")
    keys.fixed("model_type", "transformer")
    keys.only("use_biases", False)
    _check_given(keys, "norm_eps")
    window, theta = keys.optional_size("sliding_window"), keys.optional_number("rope_theta")
    config = {
        "model_type": "mistral",
        "hidden_size": _needed(keys, "dim"),
        "num_hidden_layers": keys.layers("n_layers"),
        "num_attention_heads": _needed(keys, "n_heads"),
        "num_key_value_heads": _needed(keys, "n_kv_heads"),
        "head_dim": _needed(keys, "head_dim"),
        "intermediate_size": _needed(keys, "hidden_dim"),
        "vocab_size": _needed(keys, "vocab_size"),
        "rms_norm_eps": keys.number("norm_eps"),
        "sliding_window": window,
        "rope_theta": theta or (1e6 if window is None else 1e4),  # as Mistral's code has it
        "tie_word_embeddings": keys.flag("tied_embeddings"),
    }
    notes = ["Mistral's params.json"]
    if theta is None:
        how = f"as Mistral's code has it {'without' if window is None else 'with'} a window"
        notes.append(f"rope_theta is not given: {config['rope_theta']:.0f}, {how}")
    moe = keys.raw("moe")
    if moe is not None:
        config |= {"model_type": "mixtral", **_experts(moe)}
    keys.finish(RUN, kind="decoder")
    return Described(config=config, names=NAMES, notes=tuple(notes))


def _experts(moe: object) -> Json:
    if not isinstance(moe, dict):
        raise SpecError("moe", "must be an object", moe, "remove it")
    keys = Keys(moe, {}, {}, "head")
    fields = {
        "num_local_experts": _needed(keys, "num_experts"),
        "num_experts_per_tok": _needed(keys, "num_experts_per_tok"),
    }
    keys.finish((), kind="decoder")
    return fields


def _needed(keys: Keys, name: str) -> int:
    _check_given(keys, name)
    return keys.size(name)


def _check_given(keys: Keys, name: str) -> None:
    if name not in keys.data:
        raise SpecError(name, "is missing", None, f"give {name}")
