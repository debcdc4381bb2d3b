"""From what describes a model to the model: a config, a spec, or a description of another tool.

Whatever is wrong becomes one line, an `InputError`. Files are read by `json_file`.
"""

from __future__ import annotations

import os

from metacount.errors import InputError, NoModel, SpecError, printable, shown
from metacount.formats import ARGUMENTS, ENDINGS, GGUF, OWN_TYPE, PARAMS, PYTHON
from metacount.given import Model, Source, TransformersOnly
from metacount.huggingface.config.keys import is_number, renamed
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from metacount.files import Json
    from metacount.formats import Described

MODELOPT = "hf_quant_config.json"  # which NVIDIA's quantiser writes beside config.json


def from_path(argument: str) -> Model | TransformersOnly:
    """Read the model that a file describes, or the one in a folder."""
    from metacount.files import CONFIG, read_json

    path = argument
    if os.path.isdir(argument):
        names = (CONFIG, PARAMS)  # Mistral's folders have both; transformers reads the first
        names_there = [name for name in names if os.path.lexists(os.path.join(argument, name))]
        path = os.path.join(argument, (names_there or names)[0])
    folder = os.path.dirname(os.path.abspath(path))
    name = os.path.basename(folder) if os.path.basename(path) in (CONFIG, PARAMS) else path
    stem = os.path.basename(os.path.abspath(path)).removesuffix(".json")
    if path != argument:
        stem = os.path.basename(os.path.abspath(argument))
    if path.lower().endswith(ENDINGS):
        described = _in_one_line(lambda: _from_file(path), path)
        assert described is not None  # its ending is one of those
        return _from_description(described, path, name=name, source_of={"folder": folder})
    data = read_json(path)
    if os.path.basename(path) == CONFIG:
        data = _with_quantization(data, os.path.join(folder, MODELOPT))
    return from_data(data, path, name=name, stem=stem, source_of={"folder": folder})


def _with_quantization(config: Json, file: str) -> Json:
    """Put what ModelOpt's file says of the weights into a config that says nothing of it."""
    from metacount.files import read_json

    if _quantised(config) or not os.path.exists(file):
        return config
    quantization = read_json(file).get("quantization")
    if not isinstance(quantization, dict):
        raise InputError(f"{shown(file)}: quantization must be an object; remove the file")
    return {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}


def _in_one_line(read: Callable[[], Described | None], where: str) -> Described | None:
    try:
        return read()
    except SpecError as error:
        raise InputError(f"{shown(where)}: {printable(error)}") from None


def _from_file(path: str) -> Described | None:
    ending = os.path.splitext(path)[1].lower()
    if ending == GGUF:
        from metacount.formats import gguf

        return gguf.described(path)
    if ending == PYTHON:
        from metacount.formats import nanogpt

        return nanogpt.from_python(path)
    if ending in ARGUMENTS:
        from metacount.formats import megatron

        return megatron.described(path)
    return None


def _from_keys(data: Json) -> Described | None:
    if "architectures" in data or data.get("model_type", OWN_TYPE) != OWN_TYPE:
        return None
    if "dim" in data and "n_layers" in data:
        from metacount.formats import params_json

        return params_json.described(data)
    if "n_embd" in data and "block_size" in data:
        from metacount.formats import nanogpt

        return nanogpt.from_keys(data)
    return None


def _from_description(
    described: Described, where: str, *, name: str, source_of: dict[str, str]
) -> Model | TransformersOnly:
    if described.spec is not None:
        own: Json = {"entry": None, "changes": {}, "notes": described.notes}
        return Model(id=shown(where), name=shown(name), spec=described.spec, **own)
    assert described.config is not None  # it is one of the two
    if described.gguf is not None:
        source_of = {"gguf": described.gguf}
    how: Json = {"name": name, "source_of": source_of, "path": where, "described": described}
    return from_hugging_face(described.config, where, **how)


def from_data(
    data: Json, where: str, *, name: str, stem: str, source_of: dict[str, str]
) -> Model | TransformersOnly:
    """Build the model of a config (called `name`) or of a spec (`stem`, if it has no name)."""
    if "architectures" in data or data.get("model_type", OWN_TYPE) != OWN_TYPE:
        return from_hugging_face(data, where, name=name, source_of=source_of, path=where)
    described = _in_one_line(lambda: _from_keys(data), where)
    if described is not None:
        return _from_description(described, where, name=name, source_of=source_of)
    data = dict(data)
    name = data.pop("name", stem)
    if not isinstance(name, str) or not name:
        problem = f"name must be text: got {shown(repr(name))}; leave it out"
        raise InputError(f"{shown(where)}: {problem}")
    try:
        spec = ModelSpec.from_dict(data)
    except SpecError as error:
        from metacount.settings import named, several_missing

        missing = several_missing(data, error)
        problem = f"missing: {named(missing)}" if missing else printable(error)
        kind = InputError if _names_a_size(data) else NoModel
        raise kind(f"{shown(where)}: {problem}") from None
    return Model(id=shown(stem), name=shown(name), spec=spec, entry=None, changes={})


def _names_a_size(data: Json) -> bool:
    from metacount.spec.legend import MODEL_TERMS
    from metacount.spec.model import FIELDS

    others = {name for term in MODEL_TERMS for name in term.elsewhere}
    return any(key in FIELDS or key in others or key == "model_type" for key in data)


def from_hugging_face(
    data: Json,
    where: str,
    *,
    name: str,
    source_of: dict[str, str],
    path: str,
    is_default: bool = False,
    described: Described | None = None,
) -> Model | TransformersOnly:
    """Build the model of a config; one whose type or keys have no spec is left to transformers."""
    from metacount.huggingface.config.limits import checked_config
    from metacount.huggingface.config.to_spec import (
        Unmapped,
        UnmappedType,
        of_today,
        spec_from_config,
    )
    from metacount.spec.model import FIELDS

    by_mlx = data.get("quantization")  # its name of quantization_config; often both are there
    if isinstance(by_mlx, dict) and data.get("quantization_config", by_mlx) == by_mlx:
        rest = {key: value for key, value in data.items() if key != "quantization"}
        data = {**rest, "quantization_config": by_mlx}
    source = Source(config=data, name="" if is_default else where, **source_of)
    try:
        try:
            mapped = spec_from_config(data)
        except Unmapped:
            checked_config(data)  # which transformers' module would be built of
            raise
    except UnmappedType:
        problem = f"the model type {shown(data['model_type'])} has no textbook spec"
        text = _text_part(data, shown(path), shown(name))
        if isinstance(text, str):
            problem, text = f"{problem}, and its text part none: {text}", None
        elif text is not None:
            problem = f"{problem} but for its text part"
        return TransformersOnly(
            id=shown(path), name=shown(name), source=source, problem=problem, text=text
        )
    except Unmapped as error:
        if described is not None:  # nor is it transformers' own config, which would be left to it
            raise InputError(
                f"{shown(where)}: {renamed(printable(error), described.names)}"
            ) from None
        return TransformersOnly(
            id=shown(path), name=shown(name), source=source, problem=printable(error)
        )
    except SpecError as error:
        if is_default:
            # a type's own default is nobody's mistake: transformers may still build it
            problem = f"its default config makes no spec: {printable(error)}"
            return TransformersOnly(
                id=shown(path), name=shown(name), source=source, problem=problem
            )
        reason = renamed(printable(error), {} if described is None else described.names)
        raise InputError(f"{shown(where)}: {reason}") from None
    notes = [*(() if described is None else described.notes), *mapped.notes]
    for key in FIELDS["n_mtp_layers"].elsewhere:
        spoken_of = any(note.startswith(f"{key}: ") for note in notes)
        if is_number(count := data.get(key)) and count > 0 and not spoken_of:
            notes.append(f"{key}: {count} prediction layers are not counted")
    if data.get("model_type") != mapped.model_type:  # it is that of the class that is named
        config = {**of_today(data), "model_type": mapped.model_type}
        source = Source(config=config, **source_of)
    return Model(
        id=shown(path),
        name=shown(name),
        spec=mapped.spec,
        entry=None,
        changes={},
        source=None if mapped.is_remote else source,
        notes=tuple(notes),
        refused=bool(mapped.refused),
        quantised=_quantised(data)
        if described is None
        else _quantised({"quantization_config": described.stored}),
    )


def _quantised(data: Json) -> Json | None:
    parts = (data, data.get("text_config"))
    named = any(isinstance(part, dict) and part.get("quantization_config") for part in parts)
    return data if named else None


def _text_part(data: Json, path: str, name: str) -> Model | str | None:
    """Build the part of a model that reads and writes text; say why where it has no spec."""
    from metacount.huggingface.config.to_spec import text_from_config

    try:
        text_part = text_from_config(data)
    except SpecError as error:
        return printable(error)
    if text_part is None:
        return None
    text, mapped = text_part
    return Model(
        id=path,
        name=f"the text part of {name}",
        spec=mapped.spec,
        entry=None,
        changes={},
        source=None if mapped.is_remote else Source(config=text),
        quantised=_quantised(data),
        notes=(*mapped.notes, "what sees or hears is not in these figures: `count` measures it"),
        refused=bool(mapped.refused),
    )
