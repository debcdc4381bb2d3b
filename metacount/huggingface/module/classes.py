"""Which of transformers' classes a config means. Nothing is imported but the one model's files."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from metacount.errors import RELATED, SpecError, nearest
from metacount.measure.theirs import silent

if TYPE_CHECKING:
    from types import ModuleType

    from transformers.configuration_utils import PreTrainedConfig
    from transformers.modeling_utils import PreTrainedModel

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
    found = _named(folder(model_type), names[model_type])
    if found is None:
        found = _named(import_module("transformers"), names[model_type])
    assert found is not None  # its own table has the name
    return found


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
            found = _class_called(name, model_type)
            if found is not None:
                older = "" if name == named[0] else f", as {named[0]}"
                return found, f"named by architectures{older}"
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
            found = _class_called(name, model_type)
            if found is not None:
                return found, f"the {kind} class of type {model_type}"
    raise SpecError("model_type", "has no model class", model_type, "name one in architectures")


def _class_called(name: str, model_type: str) -> type[PreTrainedModel] | None:
    with silent():
        from transformers.modeling_utils import PreTrainedModel

    if not name.isidentifier() or name.startswith("_"):
        return None
    found = _named(folder(model_type), name)
    if found is None:
        # some types use another type's class (internlm3: LlamaForCausalLM)
        found = _named(import_module("transformers"), name)
    is_model = isinstance(found, type) and issubclass(found, PreTrainedModel)
    return found if is_model else None
