"""What MODEL can be: a model with a spec, one that only transformers knows, a module."""

from __future__ import annotations

from metacount.errors import InputError, shown
from metacount.frozen import frozen
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from typing import Any, TypeGuard

    from torch import nn

    from metacount.catalog import CatalogEntry
    from metacount.files import Json


@frozen
class Source:
    """A Hugging Face config: its content, and the folder or repository it was read from.

    A bare model type has neither. `gguf`: the file whose header says what the config says. `name`:
    what it is called where something of it is wrong.
    """

    config: Json
    name: str = ""
    folder: str | None = None
    repository: str | None = None
    gguf: str | None = None


@frozen
class TransformersOnly:
    """A model without a spec of ours, which transformers may build; `problem` says why.

    `entry` is None when it came from a file. `text` is its part that reads and writes text, where
    that one has a spec.
    """

    id: str
    name: str
    source: Source
    problem: str
    entry: CatalogEntry | None = None
    text: Model | None = None


@frozen
class OwnModule:
    """A module of somebody's own: FILE.py:NAME as it was typed, and what the file has there.

    `model` is what its config describes; where it is None, `problem` says why.
    """

    id: str
    module: nn.Module
    model: Model | TransformersOnly | None
    problem: str = ""

    @property
    def name(self) -> str:
        """Return NAME."""
        return self.id.rpartition(":")[2]


@frozen
class Model:
    """A model to be looked at. `entry` is None when it came from a file.

    `refused`: transformers does not take the config, so that nothing of its code speaks of it.
    `computed`: how sizes that were not given as numbers came about. `quantised`: the config, where
    it says how weights are packed.
    """

    id: str
    name: str
    spec: ModelSpec
    entry: CatalogEntry | None
    changes: Json
    source: Source | None = None
    notes: tuple[str, ...] = ()
    refused: bool = False
    computed: tuple[str, ...] = ()
    quantised: Json | None = None

    @property
    def published(self) -> CatalogEntry | None:
        """The entry whose published count belongs to this spec; None once sizes were changed."""
        return None if self.changes else self.entry


def remedy(model: TransformersOnly) -> str:
    """Say what can be asked of a model that only transformers knows."""
    argument = model.id if " " not in model.id else "MODEL"
    return (
        f"`metacount count {argument}` measures it, "
        f"`metacount formula {argument} --from-code` reads a form off its code"
    )


def is_module(given: object) -> TypeGuard[nn.Module]:
    """Tell whether something is an `nn.Module`, as far as its methods tell."""
    return hasattr(given, "named_parameters") and not isinstance(given, type)


def has_config(module: object) -> bool:
    """Tell whether a module says what it is: by a spec of ours or a config of transformers'."""
    config = getattr(module, "config", None)
    return isinstance(getattr(module, "spec", None), ModelSpec) or hasattr(config, "to_dict")


def described(module: object) -> tuple[str, ModelSpec | Json]:
    """Return the name of a module's class, and its spec (ours) or config (transformers')."""
    kind = shown(type(module).__name__)
    spec = getattr(module, "spec", None)
    if isinstance(spec, ModelSpec):
        return kind, spec
    if not has_config(module):
        raise InputError(
            f"{kind} is a module without a config, so there is no formula: "
            "metacount.summary(module) measures it"
        )
    config: Any = getattr(module, "config", None)
    return kind, {**config.to_dict(), "architectures": [type(module).__name__]}


def check_size(given: object, params: int | None) -> None:
    """Raise `InputError` where a module has other parameters than what its config makes."""
    if params is None or not is_module(given):
        return
    held = sum(p.numel() for p in given.parameters())
    if held != params:
        raise InputError(
            f"{shown(type(given).__name__)} has {held:,} parameters, its config makes {params:,}: "
            "it was changed after it was built; metacount.summary(module) measures it as it is"
        )
