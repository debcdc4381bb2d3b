"""From a Hugging Face config.json to a spec. Reads plain data; imports neither torch nor
transformers, so that counting a config is as quick as counting a model of the catalog.
"""

from __future__ import annotations

from metacount.errors import RELATED, SpecError, nearest
from metacount.frozen import frozen
from metacount.huggingface.config.keys import (
    Keys,
    Unmapped,
    UnmappedClass,
    UnmappedKey,
    UnmappedType,
    in_names,
    may_say_nothing,
    pass_over,
    words,
)
from metacount.huggingface.config.record import family_of, is_known, mapped_types, refusals
from metacount.huggingface.config.rope import AXES
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.files import Json
    from metacount.huggingface.config.parts import Family


# Of a spec, what belongs to the output head or needs it; a base class has none of it.
HEAD_FIELDS = words(
    "n_mtp_layers tie_embeddings head_bias logit_scale logit_softcap head_transform "
    "head_transform_bias"
)

# What a class of remote code is called when it ends like the class that transformers has.
LANGUAGE_MODEL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM")


@frozen
class Mapped:
    """The spec of a config, the class it stands for, what was not obeyed, what was passed over.

    `refused` says why transformers would not take the config, where that is known; it is among the
    notes, too.
    `differs`: where a module of this spec computes something else than transformers' class, though
    every count is the same. Weights are not loaded then.
    `model_type` is the config's, or that of the class it names. `is_remote`: its code is not
    transformers' and is not run, so that no module speaks of it.
    """

    spec: ModelSpec
    model_type: str
    class_name: str
    notes: tuple[str, ...]
    ignored: tuple[str, ...]
    refused: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    is_remote: bool = False


# Types of a text part alone, by which its keys are published -> the type that transformers has.
TEXT_ALONE = {"minimax_m3": "minimax_m3_vl_text"}


def of_today(config: Json) -> Json:
    """Give the config of a text part alone the name that transformers has for its type."""
    name = config.get("model_type")
    if name not in TEXT_ALONE:
        return config
    rest = {key: value for key, value in config.items() if key not in ("architectures", "auto_map")}
    return {**rest, "model_type": TEXT_ALONE[name]}


def spec_from_config(config: Json) -> Mapped:
    """Read the spec of the class that `config` means.

    Raises `UnmappedType`, `UnmappedClass` or `UnmappedKey` (all `Unmapped`) for what may be a
    model but has no spec, and any other `SpecError` for what is no model.

    >>> spec_from_config({"model_type": "llama", "num_hidden_layers": 2}).spec.d_ff
    11008
    """
    if not isinstance(config, dict):
        raise SpecError("config", "must be an object", config, "give the content of a config.json")
    for key in config:
        if not isinstance(key, str):
            raise SpecError("config", "must have text for keys", key, "give a config.json")
    name, notes = config.get("model_type"), []
    if name is None and config.get("architectures"):
        name, class_name = type_of_class(config["architectures"])
        config = {"model_type": name, **config, "architectures": [class_name]}
        notes.append(f"model_type {name}: that of {class_name}, which architectures names")
    if not isinstance(name, str):
        raise SpecError("model_type", "must be text", name, "for example llama")
    if name in TEXT_ALONE:
        note = f"model_type {name} is not known to transformers: counted as {TEXT_ALONE[name]}"
        notes.append(f"{note}, which has the same keys")
        config, name = of_today(config), TEXT_ALONE[name]
    elif not is_known(name) and not _is_remote(name):
        try:
            name, class_name = type_of_class(config.get("architectures"))
        except SpecError:
            raise _no_spec_of_type(name) from None
        note = f"model_type {config['model_type']} is not known to transformers: counted as {name}"
        config = {**config, "model_type": name, "architectures": [class_name]}
        notes.append(f"{note}, whose {class_name} architectures names")
    family = family_of(name)
    if family is not None:
        return _mapped(config, name, family, notes)
    if not _is_remote(name):
        raise _no_spec_of_type(name)
    from metacount.huggingface.config.remote import REMOTE

    notes.append(
        f"type {name} is read by its keys: its own code is not run, and transformers has none"
    )
    try:
        return _mapped(config, name, {**REMOTE, **inside_alone()}[name], notes, is_remote=True)
    except Unmapped as error:  # nor can transformers tell
        raise SpecError(error.field, error.rule, error.value, error.remedy) from None


def text_from_config(config: Json) -> tuple[Json, Mapped] | None:
    """Read the text part of a model that also sees or hears: its config, as one of its own type,
    and what is read of it. None where the type has no such part, or no head that writes text.

    >>> text = {"num_hidden_layers": 2, "vocab_size": 32064}
    >>> spec = text_from_config({"model_type": "llava", "text_config": text})[1].spec
    >>> spec.n_layers, spec.d_model
    (2, 4096)
    """
    text_part, named = text_of(config), config.get("architectures")
    named = named[0] if isinstance(named, list) and named else named
    if text_part is None or (named and not str(named).endswith(LANGUAGE_MODEL)):
        return None
    text, kind = text_part
    family = family_of(text["model_type"], kind)
    inner = inside_alone().get(kind)
    family = inner if family is None else family
    assert family is not None  # it is in the record, or stands with its defaults
    note = f"the text part of {named or config['model_type']}, type {kind}"
    mapped = _mapped(text, text["model_type"], family, [note], is_remote=inner is not None)
    return text, mapped


def inside_alone() -> dict[str, Family]:
    """Return the types of text that transformers has inside another model alone."""
    from metacount.huggingface.config.families.mixtures import TEXT_ROWS

    return TEXT_ROWS


def _is_remote(name: str) -> bool:
    from metacount.huggingface.config.remote import REMOTE

    return name in REMOTE or name in inside_alone()


def _no_spec_of_type(name: str) -> UnmappedType:
    otherwise = "transformers' own module may tell"
    remedy = nearest(name, mapped_types(), otherwise, alike=RELATED)
    return UnmappedType("model_type", "has no spec", name, remedy)


def type_of_class(architectures: object) -> tuple[str, str]:
    """Find the model type whose class `architectures` names, and the class.

    >>> type_of_class(["Qwen2ForCausalLM"]), type_of_class("ChatGLMModel")
    (('qwen2', 'Qwen2ForCausalLM'), ('chatglm', 'ChatGLMModel'))
    """
    from metacount.huggingface.config.remote import REMOTE

    named = architectures[0] if isinstance(architectures, list) and architectures else architectures
    if not isinstance(named, str):
        rule, remedy = "must be a list of class names", "give the config's model_type"
        raise SpecError("architectures", rule, architectures, remedy)
    types: dict[str, list[str]] = {}
    for name in mapped_types():
        family = family_of(name)
        for known in () if family is None else family.classes:
            types.setdefault(known, []).append(name)
    for name, family in REMOTE.items():
        for known in family.classes:
            # Phi was ported under its class's name: the port is what the name means today
            types.setdefault(known, [name])
    if named not in types:
        rule = "is missing, and architectures names no class that has a spec"
        raise SpecError("model_type", rule, named, nearest(named, types, "give it"))
    # a class that several types use belongs to the one that it is called after
    own = types[named]
    called = [name for name in own if named.lower().startswith(name.replace("_", ""))]
    if len(called) != 1 and len(own) != 1:
        rule = f"is missing, and {named} is the class of several types"
        raise SpecError("model_type", rule, None, f"give one of {', '.join(own)}")
    return (called or own)[0], named


def _mapped(
    config: Json, name: str, family: Family, notes: list[str], *, is_remote: bool = False
) -> Mapped:
    class_name, end, reason = _choose_class(config, family)
    keys = Keys(config, dict(family.defaults), dict(family.aliases), end)
    keys.notes += [*notes, f"{class_name} ({reason})"]
    if config.get("quantization_config") is not None:
        keys.notes.append("quantization_config: parameters are counted unpacked")
    fields = family.fields(keys)
    if end != "head":
        bare = {name: value for name, value in fields.items() if name not in HEAD_FIELDS}
        fields = {**bare, "has_head": False, **({"pooler": True} if end == "pooled" else {})}
    passed = keys.finish(family.ignored, kind=fields["kind"], may_pass=may_say_nothing)
    try:
        spec = ModelSpec.from_dict(fields)
    except SpecError as error:
        raise in_names(error, _names_in(keys)) from None
    passed += pass_over(keys, spec)
    refused = () if is_remote else refusals(config, spec, keys.refused)
    return Mapped(
        spec=spec,
        model_type=name,
        class_name=class_name,
        notes=(*keys.notes, *refused),
        ignored=passed,
        refused=refused,
        differs=tuple(keys.different),
        is_remote=is_remote,
    )


def _names_in(keys: Keys) -> dict[str, str]:
    from metacount.spec.legend import MODEL_TERMS

    names = {}
    for term in MODEL_TERMS:
        present = [name for name in (term.name, *term.elsewhere) if name in keys.read]
        if len(present) == 1:  # two would be as good a guess as the other
            names[term.name] = keys.spelled.get(present[0], present[0])
    return names


def _choose_class(config: Json, family: Family) -> tuple[str, str, str]:
    classes = dict(family.classes)
    default = next(iter(classes))
    with_a_spec = ", ".join(name for name, end in classes.items() if end is not None)
    named = config.get("architectures")
    named = [named] if isinstance(named, str) else named
    if named is None or named == []:
        end = classes[default]
        if end is None:
            what = f"is not given, and {default}, the {family.kind} class of this type, has no spec"
            raise UnmappedClass("architectures", what, None, f"name one: {with_a_spec}")
        return default, end, f"the {family.kind} class of its type"
    if not isinstance(named, list) or not isinstance(named[0], str):
        remedy = f"remove it to count {default}"
        raise SpecError("architectures", "must be a list of class names", named, remedy)
    name, reason = named[0], "named by architectures"
    if name not in classes and config.get("auto_map") and name.endswith(LANGUAGE_MODEL):
        reason = "transformers' own; architectures names remote code, which is not run"
        name = default
    end = classes.get(name)
    if end is None:
        remedy = f"those of this type that have one: {with_a_spec}"
        raise UnmappedClass("architectures", "names a class that has no spec", name, remedy)
    return name, end, reason


__all__ = [
    "Mapped",
    "Unmapped",
    "UnmappedClass",
    "UnmappedKey",
    "UnmappedType",
    "mapped_types",
    "spec_from_config",
]


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
    "gemma4": ("gemma4_text", TIED),
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
    "step3p7": ("step3p5", UNTIED),
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
    known = {*LIKE, *mapped_types(), *inside_alone()}
    kind = named if named in known else kind
    if kind not in known:
        return None
    text = {**inside, "model_type": LIKE.get(kind, kind)}
    if kind == "qwen3_vl_moe_text":  # whose class reads no key, and always divides by the sum
        text["norm_topk_prob"] = True
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
