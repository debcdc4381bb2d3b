"""Descriptions of a model that are no config.json: read as data, each by its own keys, never run.

A file is told by its name where that is enough, else by its keys.
"""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.files import Json
    from metacount.spec import ModelSpec


PARAMS = "params.json"  # what Meta and Mistral call the description beside their weights
GGUF, PYTHON = ".gguf", ".py"
ARGUMENTS = (".sh", ".args")
ENDINGS = (GGUF, PYTHON, *ARGUMENTS)
OWN_TYPE = "transformer"  # the model_type of a params.json of Mistral's; no type of transformers


@frozen
class Described:
    """What a file says: a spec, or a config of transformers' that means the same model.

    `names` are the file's own names of that config's keys. `gguf` is the file whose tensors can be
    compared with transformers' module, `stored` the bytes and types of these.
    """

    spec: ModelSpec | None = None
    config: Json | None = None
    names: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    gguf: str | None = None
    stored: Json | None = None


def spec_of(fields: Json, names: Mapping[str, str]) -> ModelSpec:
    """Build the spec of these fields; a broken rule is said in the file's names of them."""
    from metacount.errors import SpecError
    from metacount.huggingface.config.keys import in_names
    from metacount.spec import ModelSpec

    try:
        return ModelSpec.from_dict(fields)
    except SpecError as error:
        raise in_names(error, names) from None
