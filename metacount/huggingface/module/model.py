"""transformers' own module from any config: on meta, without weights, without remote code."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import torch
from torch import nn

from metacount.errors import RELATED, SpecError, nearest, shown, shown_name
from metacount.given import Source
from metacount.huggingface.config.keys import HARMLESS, NEUTRAL, is_number, same
from metacount.huggingface.config.limits import checked_config
from metacount.measure.theirs import quiet, silent, text_config
from metacount.measure.torch_private import put_tensor, tensors_of
from metacount.measure.transformers_private import use_eager_attention
from metacount.spec.model import FIELDS
from metacount.tensors import made_in, process_made_in, replaced_here

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from transformers.configuration_utils import PreTrainedConfig
    from transformers.modeling_utils import PreTrainedModel

    from metacount.files import Json


T = TypeVar("T")

# A module costs about 3 KB on meta: this many stay within a GiB.
MAX_MODULES = 250_000

# Registered for a composite config, though they are built from its decoder's.
DECODER_PART = frozenset(["MusicgenForCausalLM", "MusicgenMelodyForCausalLM"])

# The spellings of each size, those of our fields that count the same thing together.
SIZES = {
    fields: frozenset(n for f in fields.split() for n in (f, *FIELDS[f].elsewhere)) - HARMLESS
    for fields in (
        "d_model",
        "n_layers n_encoder_layers",
        "n_heads",
        "n_kv_heads",
        "vocab_size",
        "d_ff",
        "d_ff_expert",
        "d_ff_shared",
        "n_experts",
        "n_shared_experts",
        "top_k",
    )
}
PREDICTION_COUNTS = FIELDS["n_mtp_layers"].elsewhere

SMALL = os.path.join(os.path.dirname(__file__), "small_configs.json")


def default_config(model_type: str) -> Json:
    """Return the config of a bare model type: transformers' defaults, or the small one kept here.

    Kept for types whose own defaults build no model.
    """
    config = small_configs().get(model_type, {})
    changes = config["config"] if config.get("for") == "build" else {}
    return {"model_type": model_type, **changes}


def running_config(model_type: str) -> Json:
    """Return `default_config`, with what a type's defaults lack to be run, not only built."""
    config = small_configs().get(model_type, {})
    return {"model_type": model_type, **config.get("config", {})}


@cache
def small_configs() -> Json:
    """Read the configs for the types whose default does not build,
    or not run, and why; by model type.
    """
    with open(SMALL, encoding="utf-8") as file:
        data: Json = json.load(file)
    return data


def build_transformers(
    source: str | Json | PreTrainedConfig | Source, *, dtype: torch.dtype = torch.bfloat16
) -> tuple[nn.Module, ClassChoice]:
    """Build transformers' module of a config (an object, its dict or a `Source`) or of a model
    type, on meta.

    In eval mode, with eager attention. Nothing is fetched, no weight is made or initialised.
    Raises `SpecError`, in one line, for whatever is wrong with the config.
    """
    if isinstance(source, Source):
        try:
            return build_transformers(source.config, dtype=dtype)
        except SpecError as error:
            where = f"{shown(source.name)}: " if source.name else ""
            rule = (f"{where}{error.field}", error.rule, error.value, error.remedy)
            raise SpecError(*rule) from error
    chosen, config, choice = chosen_class(source)
    with _quiet():
        module = _made(choice.class_name, lambda: _on_meta(chosen, config, dtype))
    return module, choice


def chosen_class(
    source: str | Json | PreTrainedConfig,
) -> tuple[type[PreTrainedModel], PreTrainedConfig, ClassChoice]:
    """Find the class that a config means, transformers' config object for it,
    and the choice in words.

    Raises `SpecError`, in one line, for whatever is wrong with the config.
    """
    data = default_config(source) if isinstance(source, str) else source
    if not isinstance(data, dict):
        data = data.to_dict()
    checked, notes = checked_config(data)
    model_type, architectures = checked.pop("model_type", None), checked.pop("architectures", None)
    if isinstance(source, str) and len(data) > 1:
        notes += (f"a small config kept for this type: {small_configs()[source]['why']}",)
    with _quiet():
        if known := _type_named(model_type, architectures):
            said = f"model_type {model_type} is not known to transformers: counted as {known}"
            model_type, notes = known, (said, *notes)
        config_type = config_class(model_type)
        config = _made(config_type.__name__, lambda: config_type(**checked))
        keys = _unread_keys(config, checked)
        more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
        unread = f"{config_type.__name__} has no field for {', '.join(keys[:8])}{more}"
        unread = unread if keys else ""
        remote = bool(data.get("auto_map"))
        chosen, reason = choose_class(model_type, architectures, remote=remote, unread=unread)
        added = (unread, _prediction_modules(config))
        config, note = _config_for(chosen, config, model_type, unread)
        use_eager_attention(config)
    choice = ClassChoice(
        model_type=model_type,
        class_name=chosen.__name__,
        reason=reason,
        notes=(*notes, *(text for text in (note, *added) if text)),
    )
    return chosen, config, choice


def _unread_keys(config: PreTrainedConfig, data: Json, path: str = "") -> list[str]:
    """List the keys of a config, and of those inside it, that its class has no field for.

    A size that is what was built is not listed. Raises `SpecError` for one that is not.
    """
    unread: list[str] = []
    parts = _parts(config, path)
    text = {path: config} | {p: part for p, part in parts.items() if part is text_config(config)}
    for key, value in data.items():
        part, name = _value(config, key), path + shown_name(key)
        if isinstance(value, dict) and _is_config(part):
            unread += _unread_keys(part, value, f"{name}.")
        elif (
            value is None
            or _is_field(config, key)
            or key not in vars(config)  # its class has read and dropped it
            or key in HARMLESS
            or key in PREDICTION_COUNTS
            or any(same(value, neutral) for neutral in NEUTRAL.get(key, ()))
            or (same(value, part) and key in _own_attributes(type(config)))
        ):
            continue
        elif isinstance(value, dict):
            if SIZES["vocab_size"].intersection(value):  # a language model
                for inner, size in value.items():
                    _is_built(parts, inner, size, f"{name}.{shown_name(inner)}")
            unread.append(name)
        elif not _is_built(text, key, value, name):
            unread.append(name)
    return unread


def _parts(config: PreTrainedConfig, path: str) -> dict[str, PreTrainedConfig]:
    parts = {path: config}
    for name, part in vars(config).items():
        if _is_config(part):
            parts |= _parts(part, f"{path}{name}.")
    return parts


def _is_config(part: object) -> TypeGuard[PreTrainedConfig]:
    return dataclasses.is_dataclass(part) and hasattr(part, "attribute_map")


def _own_attributes(kind: type[PreTrainedConfig]) -> frozenset[str]:
    """Find what a config class sets beside its fields: it is in each file that was saved by it."""
    try:
        return frozenset(vars(kind()))
    except Exception:  # one that has no defaults
        return frozenset()


def _is_field(config: PreTrainedConfig, key: str) -> bool:
    kind = type(config)
    return (
        hasattr(kind, key)
        or key in kind.attribute_map
        or any(key == field.name for field in dataclasses.fields(kind))
    )


def _value(config: PreTrainedConfig, key: str) -> object:
    try:
        return getattr(config, key, None)
    except Exception:  # one that has a value for each layer
        return None


def _is_built(parts: dict[str, PreTrainedConfig], key: str, value: object, name: str) -> bool:
    """Tell whether a value that no class reads is a size, and what was built by another key.

    Raises `SpecError` where something else was built.
    """
    kinds = [kind for kind in SIZES if key in SIZES[kind]]
    if not kinds or not is_number(value):
        return False
    built: dict[int, str] = {}
    lacking = False
    for kind in kinds:
        sizes = _sizes(parts, kind)
        lacking = lacking or not sizes
        if not sizes and kind == "n_kv_heads":
            sizes = _sizes(parts, "n_heads")  # as many as queries have
        if not sizes and kind == "n_experts":
            sizes = {0: "no experts", 1: ""}  # a feed-forward without experts
        if not sizes:
            return False  # what it may mean was not built by any key
        built |= sizes
    if value in built:
        return True
    fields = {field: size for size, field in built.items() if field}
    sizes_built = ", ".join(f"{field} {size}" if size else field for field, size in fields.items())
    raise SpecError(
        name,
        f"is not read by {type(next(iter(parts.values()))).__name__}, which builds {sizes_built}",
        value,
        "transformers has no class of this type that reads it"
        if lacking
        else f"write it as {' or '.join(fields)}",
    )


def _sizes(parts: dict[str, PreTrainedConfig], kind: str) -> dict[int, str]:
    sizes: dict[int, str] = {}
    for path, part in parts.items():
        for field in sorted(SIZES[kind]):
            size = _value(part, field) if _is_field(part, field) else None
            if isinstance(size, int):
                sizes.setdefault(size, path + field)
    return sizes


def _prediction_modules(config: PreTrainedConfig) -> str:
    for part in reversed(_parts(config, "").values()):
        for name in PREDICTION_COUNTS:
            count = _value(part, name)
            if isinstance(count, int) and count > 0:
                modules = "module" if count == 1 else "modules"
                return f"without the {count} multi-token-prediction {modules} of {name}"
    return ""


def _config_for(
    chosen: type[PreTrainedModel], config: PreTrainedConfig, model_type: str, unread: str
) -> tuple[PreTrainedConfig, str]:
    if chosen.__name__ in DECODER_PART:
        return config.decoder, f"{chosen.__name__} is the decoder of {type(config).__name__}"
    wants = getattr(chosen, "config_class", None)
    if wants is None or isinstance(config, wants):
        return config, ""
    text = getattr(config, "text_config", None)
    if isinstance(text, wants):
        return text, f"{chosen.__name__} is the text model of {type(config).__name__}"
    if any(model_types(kind).get(model_type) == chosen.__name__ for kind, _ in MAPPINGS):
        return config, ""  # a type may share another's class under a config of its own
    raise SpecError(
        "architectures",
        f"does not go with model_type: it takes a {wants.__name__}",
        chosen.__name__,
        unread or "remove architectures",
    )


def built_quietly(
    chosen: Callable[[PreTrainedConfig], nn.Module], config: PreTrainedConfig, dtype: torch.dtype
) -> nn.Module:
    """Build the module of a class and a config object as `chosen_class` gave them, on meta."""
    with _quiet():
        return _on_meta(chosen, config, dtype)


def made_really(
    chosen: Callable[[PreTrainedConfig], nn.Module], config: PreTrainedConfig
) -> nn.Module:
    """Build the module of a class and a config object on the CPU in float32, in eval mode.

    Its weights have no values yet: nothing initialises them. What its code computes (tables of
    positions, frequencies) is there.
    """
    with _quiet(), _no_initialisation(), _bounded():
        return chosen(config).eval()


def _on_meta(
    chosen: Callable[[PreTrainedConfig], nn.Module], config: PreTrainedConfig, dtype: torch.dtype
) -> nn.Module:
    with torch.device("meta"), _no_initialisation():
        with _bounded(), made_in(dtype):
            module: nn.Module = chosen(config)
        if any(not each.is_meta for part in module.modules() for each in tensors_of(part).values()):
            # `torch.Tensor(n)`, which some classes call, asks for the type of the process alone
            with _bounded(), process_made_in(dtype):
                module = chosen(config)
    for owner in module.modules():
        for name, tensor in tensors_of(owner).items():
            if not tensor.is_meta:
                _to_meta(owner, name, tensor)
    return module.eval()


def _to_meta(owner: nn.Module, name: str, tensor: torch.Tensor) -> None:
    # made from data on purpose (torch.tensor, torch.normal); small, or the bounds would not hold
    moved = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
    put_tensor(owner, name, moved)


def _unchanged(tensor: object = None, *_args: object, **_kwargs: object) -> object:
    return tensor


def _no_initialisation() -> AbstractContextManager[None]:
    """Make torch's initialisers return what they get until the block ends:
    values of meta tensors do not exist.
    """
    names = [n for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")]
    return replaced_here(nn.init, dict.fromkeys(names, _unchanged))


@contextmanager
def _bounded() -> Iterator[None]:
    count, thread = 0, get_ident()

    def register(_owner: nn.Module, name: str, _child: object) -> None:
        nonlocal count
        count += get_ident() == thread
        if count > MAX_MODULES:
            raise SpecError(
                "config",
                f"makes more than {MAX_MODULES} modules",
                name,
                "choose fewer layers or experts",
            )

    handle = nn.modules.module.register_module_module_registration_hook(register)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _quiet() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        with quiet():
            yield
    finally:
        if collects:
            gc.enable()


def _made(name: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except SpecError:
        raise
    except (MemoryError, RecursionError) as error:
        raise SpecError(
            "config", f"asks too much of {name}", type(error).__name__, "choose smaller sizes"
        ) from None
    except Exception as error:
        # the last line of a validator's message is the rule, the first of any other the fact
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        reason = lines[-1 if "alidat" in type(error).__name__ else 0]
        reason = "".join(c if c.isprintable() else "?" for c in reason)[:160].rstrip(":")
        if isinstance(error, AttributeError | TypeError | LookupError):  # Python's words, not ours
            reason = f"its code does not take a value of this config ({reason})"
        remedy = re.search(r"pip install [\w.-]+\w", str(error) * isinstance(error, ImportError))
        raise SpecError(
            "config",
            f"makes no {name} in transformers {version()}: {reason}",
            type(error).__name__,
            remedy[0] if remedy else "correct the config",
        ) from error


# Keys of transformers' configs for the rows of a position table, or the longest input meant.
LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_seq_len",
    "max_sequence_length",
)
TEXT_PARTS = ("text_config", "encoder", "decoder")  # of a config made of configs


def longest_of(source: str | Json) -> tuple[int, str] | None:
    """Find the smallest number of positions that a config gives, and its key;
    None where it gives none.

    transformers' defaults stand for keys that are missing. Raises `SpecError` for a config that
    means no model.
    """
    _, config, _ = chosen_class(source)
    parts = [config, *(getattr(config, name, None) for name in TEXT_PARTS)]
    lengths = []
    for part in parts:
        for key in LENGTHS:
            value = getattr(part, key, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                lengths.append((value, key))
    return min(lengths, default=None)


# Without `architectures`: the first of these mappings that has the type.
MAPPINGS = (
    ("causal-LM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    ("masked-LM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ("image-text-to-text", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"),
    ("multimodal", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"),
    ("speech seq2seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    ("base", "MODEL_MAPPING_NAMES"),
)
# What old configs on the hub call a class that has another name today.
RENAMED = {"T5WithLMHeadModel": "T5ForConditionalGeneration"}
TEXT_KINDS = ("causal-LM", "seq2seq", "masked-LM")


@dataclass(frozen=True, kw_only=True)
class ClassChoice:
    """The class that is counted, and why this one."""

    model_type: str
    class_name: str
    reason: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join([f"{self.class_name} ({self.reason})", *self.notes])


def version() -> str:
    """Return transformers' version."""
    import transformers

    return str(transformers.__version__)


def model_types(kind: str) -> dict[str, str]:
    """Map model types to class names for one kind of `MAPPINGS`,
    as the installed transformers has it.
    """
    auto = import_module("transformers.models.auto.modeling_auto")
    names = getattr(auto, dict(MAPPINGS)[kind])
    return {t: n if isinstance(n, str) else n[0] for t, n in names.items()}


def config_names() -> dict[str, str]:
    """Map every model type that the installed transformers knows to its config class."""
    auto = import_module("transformers.models.auto.configuration_auto")
    return dict(auto.CONFIG_MAPPING_NAMES)


def folder(model_type: str) -> ModuleType:
    """Import the package of one model type,
    `transformers.models.X` (lazy: no file of it is read yet).
    """
    auto = import_module("transformers.models.auto.configuration_auto")
    return import_module(f"transformers.models.{auto.model_type_to_module_name(model_type)}")


def _named(module: ModuleType, name: str) -> type | None:
    # the lazy package raises for a name whose file needs something not installed
    try:
        return getattr(module, name, None)
    except (ImportError, RuntimeError) as error:
        raise SpecError(
            "architectures",
            "needs a library that is not installed",
            name,
            str(error).strip().splitlines()[0][:200],
        ) from None


def config_class(model_type: object) -> type[PreTrainedConfig]:
    """Find transformers' config class of a model type. `SpecError` for a type it does not know."""
    names = config_names()
    if not isinstance(model_type, str) or model_type not in names:
        known = "see `metacount survey` for the types there are"
        hint = known
        if isinstance(model_type, str):
            hint = nearest(model_type, names, known, alike=RELATED)
        raise SpecError(
            "model_type",
            f"is not one that transformers {version()} knows",
            "none" if model_type is None else model_type,
            hint,
        )
    cls = _named(folder(model_type), names[model_type])
    if cls is None:
        cls = _named(import_module("transformers"), names[model_type])
    assert cls is not None  # its own table has the name
    return cls


def _type_named(model_type: object, architectures: object) -> str | None:
    """Find the one type whose class `architectures` names, for a type that is not known."""
    if not isinstance(model_type, str) or model_type in config_names():
        return None
    named = architectures[:1] if isinstance(architectures, list) else [architectures]
    every = (item for kind, _ in MAPPINGS for item in model_types(kind).items())
    types = {name for name, class_name in every if class_name in named}
    return types.pop() if len(types) == 1 else None


def choose_class(
    model_type: str, architectures: object, *, remote: bool, unread: str = ""
) -> tuple[type[PreTrainedModel], str]:
    """Choose the module class for a config and give the reason, in words.

    `remote` says that the config has its own code (`auto_map`): a class that only this code knows
    is then replaced by transformers' own for the type. `unread` says which keys that one would not
    read, where it would not: to count it instead is then no advice.
    """
    if architectures is not None:
        named = architectures[:1] if isinstance(architectures, list) else [architectures]
        if named and not isinstance(named[0], str):
            raise SpecError(
                "architectures",
                "must be a list of class names",
                named[0],
                "remove it, or name one class",
            )
        if named:
            name: str = RENAMED.get(str(named[0]), str(named[0]))
            cls = _class_called(name, model_type)
            if cls is not None:
                older = "" if name == named[0] else f", as {named[0]}"
                return cls, f"named by architectures{older}"
            chosen, reason = _by_type(model_type)
            if not remote:
                raise SpecError(
                    "architectures",
                    f"names no model of transformers {version()}",
                    named[0],
                    unread or f"remove it to count {chosen.__name__}",
                )
            return chosen, f"{reason}; {str(named[0])[:80]} is remote code"
    return _by_type(model_type)


def _by_type(model_type: str) -> tuple[type[PreTrainedModel], str]:
    for kind, _ in MAPPINGS:
        name = model_types(kind).get(model_type)
        if name is not None:
            cls = _class_called(name, model_type)
            if cls is not None:
                return cls, f"the {kind} class of type {model_type}"
    raise SpecError("model_type", "has no model class", model_type, "name one in architectures")


def _class_called(name: str, model_type: str) -> type[PreTrainedModel] | None:
    with silent():
        from transformers.modeling_utils import PreTrainedModel

    if not name.isidentifier() or name.startswith("_"):
        return None
    cls = _named(folder(model_type), name)
    if cls is None:
        # some types use another type's class (internlm3: LlamaForCausalLM)
        cls = _named(import_module("transformers"), name)
    is_model = isinstance(cls, type) and issubclass(cls, PreTrainedModel)
    return cls if is_model else None
