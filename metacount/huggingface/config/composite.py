"""Models that also see or hear: the text part of their config, read by the row of its type.

The parts that see and hear are not read: transformers' own module says what they hold.
"""

from __future__ import annotations

from metacount.huggingface.config.record import mapped_types
from metacount.huggingface.config.rope import AXES

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json

# Whether the head shares the embedding is said beside text_config, in it, or in either; by default
# it does (TIED) or does not. What is said elsewhere has no effect.
TIED, UNTIED, EITHER, INSIDE = "tied", "untied", "either", "inside"

# A type -> what its text is unless text_config names a type of its own, and where the tie is said.
COMPOSITES = {
    **dict.fromkeys(("deepseek_vl", "deepseek_vl_hybrid", "glmasr", "janus"), ("llama", TIED)),
    **dict.fromkeys(("got_ocr2", "internvl", "pp_chart2table"), ("qwen2", TIED)),
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), ("granite", TIED)),
    **dict.fromkeys(("lighton_ocr", "moss_transcribe_diarize", "qwen3_asr"), ("qwen3", TIED)),
    "cohere2_vision": ("cohere2", TIED),
    "gemma3": ("gemma3_text", TIED),
    "hyperclovax_vision_v2": ("hyperclovax", TIED),
    "kimi_k25": ("deepseek_v3", TIED),
    "lfm2_vl": ("lfm2", TIED),
    "mistral3": ("mistral", TIED),
    "paligemma": ("gemma", TIED),
    **dict.fromkeys(("idefics3", "llava_next", "smolvlm", "vipllava"), ("llama", UNTIED)),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "qwen3_5"), ("qwen3_5_text", UNTIED)),
    "exaone4_5": ("exaone4", UNTIED),
    "idefics2": ("mistral", UNTIED),
    "qianfan_ocr": ("qwen3", UNTIED),
    "qwen2_5_omni_thinker": ("qwen2_5_omni_text", UNTIED),
    "qwen3_5_moe": ("qwen3_5_moe_text", UNTIED),
    "qwen3_omni_moe_thinker": ("qwen3_omni_moe_text", UNTIED),
    "qwen3_vl": ("qwen3_vl_text", UNTIED),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", UNTIED),
    **dict.fromkeys(("llava", "llava_next_video"), ("llama", EITHER)),
    **dict.fromkeys(("llava_onevision", "video_llama_3"), ("qwen2", EITHER)),
    "minimax_m3_vl": ("minimax_m3_vl_text", EITHER),
    "qwen2_vl": ("qwen2_vl_text", EITHER),
    "qwen2_5_vl": ("qwen2_5_vl_text", EITHER),
    "llama4": ("llama4_text", INSIDE),
}
# Types of text whose layers are those of another type; the record has the defaults that differ.
LIKE = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_omni_moe_text": "qwen3_moe",
}
OTHER_NAMES = {"kimi_k2": "deepseek_v3"}  # what transformers reads it as
FLAT = ("qwen2_vl", "qwen2_5_vl")  # published with the text's keys beside vision_config


def text_of(config: Json) -> tuple[Json, str] | None:
    """Return the config of the text part, of a type that has a row, and the type that it is; None
    where there is none.

    >>> text_of({"model_type": "llava", "text_config": {"vocab_size": 32064}})
    ({'vocab_size': 32064, 'model_type': 'llama', 'tie_word_embeddings': False}, 'llama')
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in COMPOSITES:
        return None
    kind, tie = COMPOSITES[name]
    inside = config.get("text_config")
    if inside is None and name in FLAT:
        inside = {k: v for k, v in config.items() if not k.endswith(("_config", "token_id"))}
        del inside["model_type"]
    if inside is None:
        inside = {}
    if not isinstance(inside, dict):
        return None
    named = inside.get("model_type", kind)
    named = OTHER_NAMES.get(named, named) if isinstance(named, str) else kind
    kind = named if named in LIKE or named in mapped_types() else kind
    if kind not in LIKE and kind not in mapped_types():
        return None
    text = {**inside, "model_type": LIKE.get(kind, kind)}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(text.get(key), dict):
            text[key] = {k: v for k, v in text[key].items() if k not in AXES}
            if "mrope" in (text[key].get("type"), text[key].get("rope_type")):
                text[key] |= {"type": "default", "rope_type": "default"}
    for key in ("architectures", "auto_map"):
        text.pop(key, None)
    if tie != INSIDE:
        outside = config.get("tie_word_embeddings", tie == TIED)
        text["tie_word_embeddings"] = outside or (
            tie == EITHER and text.get("tie_word_embeddings", False)
        )
    return text, kind
