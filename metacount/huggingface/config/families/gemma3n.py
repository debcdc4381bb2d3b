"""Gemma 3n's text model: AltUp, LAuReL, an embedding of each layer, borrowed keys and values."""

from __future__ import annotations

from metacount.errors import SpecError
from metacount.huggingface.config.families.family import decoder
from metacount.huggingface.config.families.llama import FULL_OR_SLIDING
from metacount.huggingface.config.keys import Keys, is_number
from metacount.huggingface.config.parts import (
    biases,
    layer_types,
    rope_by_layer_type,
    shortest_period,
    sizes,
    windows,
)

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

SPARSE, SPARSITY = 10, 0.95  # leading layers that are sparse where nobody says which, and how


def gemma3n(keys: Keys) -> Json:
    """Read a config of Gemma 3n (Google 2025, its model card and released code; there is no paper
    of it).
    """
    fields = sizes(keys)
    n_layers, bias = fields["n_layers"], keys.flag("attention_bias")
    if fields["d_model"] % fields["n_heads"]:
        keys.notes.append("num_attention_heads: transformers wants a divisor of hidden_size")
    every = [FULL_OR_SLIDING[(i + 1) % 5 != 0] for i in range(n_layers)]
    letters = layer_types(keys, n_layers, every, FULL_OR_SLIDING)
    seen = windows(letters, keys.size("sliding_window"))
    clip = keys.raw("altup_coef_clip")
    if not is_number(clip) or clip <= 0:
        raise SpecError(
            "altup_coef_clip", "must be a positive number", clip, "remove it: it limits training"
        )
    if not keys.flag("altup_correct_scale"):
        keys.differs("altup_correct_scale: transformers stores the scale and leaves it out")
    return {
        **fields,
        "embedding_scale": fields["d_model"] ** 0.5,
        **keys.activation("hidden_activation", gated=True),
        **biases(bias, bias),
        "norm": "rmsnorm",
        "norm_eps": keys.number("rms_norm_eps"),
        "norm_placement": "sandwich",
        "qk_norm": "head",
        "v_norm": True,
        "attention_scale": 1.0,
        "logit_softcap": keys.optional_number("final_logit_softcapping"),
        **seen,
        **rope_by_layer_type(
            keys,
            bool(seen),
            old_global="rope_theta",
            old_local="rope_local_base_freq",
            scaled=FULL_OR_SLIDING[:1],
        ),
        **_widths(keys, n_layers),
        **_sparsity(keys, n_layers),
        **_borrowed(keys, n_layers),
        "n_altup_inputs": keys.size("altup_num_inputs"),
        "altup_active": keys.size("altup_active_idx", lowest=0),
        "laurel_rank": keys.size("laurel_rank"),
        "d_per_layer": keys.size("hidden_size_per_layer_input"),
        "vocab_size_per_layer": keys.size("vocab_size_per_layer_input"),
    }


def _borrowed(keys: Keys, n_layers: int) -> Json:
    """Read how many of the last layers make no keys and values."""
    n_borrowing = keys.layers("num_kv_shared_layers", lowest=0)
    if n_borrowing > n_layers:
        raise SpecError(
            "num_kv_shared_layers",
            f"must be below num_hidden_layers = {n_layers}",
            n_borrowing,
            f"choose 0 to {n_layers - 1}",
        )
    return {"n_kv_shared_layers": n_borrowing}


def _of_layers(keys: Keys, name: str, said: object, n_layers: int) -> list[object]:
    """Return one value a layer: those of a list of as many, or the same for all."""
    if not isinstance(said, list):
        return [said] * n_layers
    if len(said) != n_layers:
        raise SpecError(
            name, f"must have one item a layer: {n_layers}", len(said), "give one number for all"
        )
    return said


def _widths(keys: Keys, n_layers: int) -> Json:
    """Read one width of the feed-forward, or two and which layer has which."""
    name = "intermediate_size"
    said = _of_layers(keys, name, keys.raw(name), n_layers)
    widths: list[int] = []
    for one in said:
        if type(one) is not int or one < 1:
            raise SpecError(name, "must be a whole number for each layer", one, "choose 1 or more")
        if one not in widths:
            widths.append(one)
    if len(widths) > 2:
        keys.unmapped(name, widths, "choose at most two widths")
    if len(widths) == 1:
        return {"d_ff": widths[0]}
    letters = "".join("MW"[widths.index(one)] for one in said if type(one) is int)
    pattern = shortest_period(letters)
    return {"d_ff": widths[0], "d_ff_second": widths[1], "d_ff_pattern": pattern}


def _sparsity(keys: Keys, n_layers: int) -> Json:
    """Read the share of a gate's values that are set to zero, and in which layers."""
    name = "activation_sparsity_pattern"
    given = keys.given(name)
    said: list[object]
    if given is None:
        n_sparse = SPARSE if n_layers > SPARSE else 0
        said = [SPARSITY if i < n_sparse else 0.0 for i in range(n_layers)]
    elif not isinstance(given, list):
        keys.unmapped(name, given, "give a list with one number a layer")
    else:
        said = _of_layers(keys, name, given, n_layers)
    for one in said:
        if not is_number(one) or not 0 <= one < 1:
            raise SpecError(
                name, "must be 0, or a share below 1, for each layer", one, "choose 0 to 1"
            )
    shares = sorted({one for one in said if is_number(one) and one > 0})
    if len(shares) > 1:
        keys.unmapped(name, shares, "choose one share, or 0, for each layer")
    if not shares:
        return {}
    letters = shortest_period("".join("T" if one else "F" for one in said))
    return {"activation_sparsity": float(shares[0]), "sparsity_pattern": letters}


FAMILIES = {
    "gemma3n_text": decoder(
        "Gemma3n",
        gemma3n,
        {
            "vocab_size": 262400,
            "vocab_size_per_layer_input": 262144,
            "hidden_size": 2048,
            "hidden_size_per_layer_input": 256,
            "intermediate_size": 16384,
            "num_hidden_layers": 35,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "sliding_window": 512,
            "final_logit_softcapping": 30.0,
            "altup_active_idx": 0,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_num_inputs": 4,
            "num_kv_shared_layers": 15,
            "laurel_rank": 64,
        },
        ignored="default_theta",
        body="Gemma3nTextModel",
    ),
}
