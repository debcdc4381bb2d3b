"""From the MODEL argument to a spec: a name of the catalog, or a file that describes a model.

Whatever is wrong becomes one line, an `InputError`. Files are read by `json_file`.
"""

from __future__ import annotations

import os

from metacount import catalog
from metacount.errors import InputError, nearest, shown
from metacount.formats import ENDINGS
from metacount.given import Model as Model
from metacount.given import OwnModule as OwnModule
from metacount.given import Source as Source
from metacount.given import TransformersOnly as TransformersOnly
from metacount.given import described, is_module
from metacount.given import remedy as remedy
from metacount.settings import by_flat_name, each_setting, parse_settings, replaced
from metacount.spec import ModelSpec

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

LIKE = "like:"  # before the name of a model or a family that another one is made like


if TYPE_CHECKING:
    # A model as the Python API takes it; an object with `to_dict` is a config of transformers.
    Given: TypeAlias = (
        str
        | os.PathLike[str]
        | Mapping[str, object]
        | ModelSpec
        | Model
        | TransformersOnly
        | object
    )


def model_of(given: Given) -> Model:
    """Find the model that a caller gives:
    what MODEL is, a config or spec as a dict, a spec, a `Model`.

    >>> model_of({"model_type": "llama", "num_hidden_layers": 2}).spec.n_layers
    2
    """
    return _with_spec(any_of(given))


def any_of(given: Given) -> Model | TransformersOnly:
    """Find the model that a caller gives;
    one that only transformers knows is a `TransformersOnly`.
    """
    if isinstance(given, Model | TransformersOnly):
        return given
    if isinstance(given, ModelSpec):
        return Model(id="the model", name="the model", spec=given, entry=None, changes={})
    if isinstance(given, str):
        return find_any(given)
    from metacount.formats.model import from_data, from_path

    if isinstance(given, os.PathLike):
        return from_path(os.fspath(given))
    if is_module(given):
        kind, content = described(given)
        if isinstance(content, ModelSpec):
            return Model(id=kind, name=kind, spec=content, entry=None, changes={})
        return from_data(content, f"the config of {kind}", name=kind, stem=kind, source_of={})
    data = given.to_dict() if hasattr(given, "to_dict") else given
    if not isinstance(data, dict):
        rule = "a model is a name, a path, a config as a dict, or a ModelSpec"
        raise InputError(f"{rule}: got {shown(repr(given))}")
    where = "the config"
    return from_data(data, where, name=where, stem=where, source_of={})


def find_model(argument: str | OwnModule, settings: Sequence[str] = ()) -> Model:
    """Find the model that MODEL names, with the sizes of every `--set FIELD=VALUE` put in.

    >>> find_model("llama-7b", ["n_layers=2"]).spec.n_layers
    2
    """
    return _with_spec(find_any(argument, settings))


def _with_spec(model: Model | TransformersOnly) -> Model:
    if isinstance(model, TransformersOnly) and model.text is not None:
        return model.text
    if isinstance(model, TransformersOnly):
        raise InputError(
            f"{model.name} has no spec, so there is no formula: {model.problem}; {remedy(model)}"
        )
    return model


def find_any(argument: str | OwnModule, settings: Sequence[str] = ()) -> Model | TransformersOnly:
    """Find the model that MODEL names; one that only transformers knows is a `TransformersOnly`."""
    if isinstance(argument, OwnModule):
        if argument.model is None:
            raise InputError(argument.problem)
        return _changed(argument.model, settings)
    if argument.lower().startswith(LIKE):
        return _like(argument[len(LIKE) :], settings)
    return _changed(_find(argument), settings)


def _like(name: str, settings: Sequence[str]) -> Model:
    """Build a model like one of the catalog, or of a family, at other sizes."""
    from metacount.settings.like import scaled, template

    it = template(name)
    changes, computed = by_flat_name(it.spec(), parse_settings(settings))
    more, ratios = scaled(it.spec(), changes, it.id)
    spec = replaced(it.spec(), changes | more)
    return Model(
        id=LIKE + it.id,
        name=f"a model like {it.name}",
        spec=spec,
        entry=None,
        changes=changes | more,
        computed=(*computed, *ratios),
    )


def find_over(argument: str | OwnModule, settings: Sequence[str], over: str) -> list[Model]:
    """Build the model at each value of a size, named by what was set.

    >>> [model.spec.d_ff for model in find_over("gpt2", [], "d_ff=d_model,4*d_model")]
    [768, 3072]
    """
    models = [(it, find_model(argument, [*settings, it])) for it in each_setting(over)]
    return [Model(**{**vars(m), "id": it, "name": f"{m.name} with {it}"}) for it, m in models]


def find_in_file(path: str, settings: Sequence[str] = ()) -> Model | TransformersOnly:
    """Read the model that a file describes, whatever the file is called."""
    from metacount.formats.model import from_path

    return _changed(from_path(path), settings)


def _changed(model: Model | TransformersOnly, settings: Sequence[str]) -> Model | TransformersOnly:
    typed = parse_settings(settings)
    if not typed:
        return model
    if isinstance(model, TransformersOnly) and model.text is not None:
        model = model.text
    if isinstance(model, TransformersOnly):
        problem = f"--set needs a model that has a spec: {model.problem}"
        raise InputError(f"{problem}; change its config.json instead")
    changes, how = by_flat_name(model.spec, typed)
    # transformers' config would not know of the changes: it is no witness any more
    return Model(
        id=model.id,
        name=model.name,
        spec=replaced(model.spec, changes),
        entry=model.entry,
        changes=changes,
        notes=model.notes,
        computed=tuple(how),
    )


def _find(argument: str) -> Model | TransformersOnly:
    name = argument.lower()
    if name in catalog.ids():
        entry = catalog.entry(name)
        if entry.config is not None:
            problem = (entry.not_expressible or "").rstrip(".")
            return TransformersOnly(
                id=entry.id,
                name=entry.name,
                entry=entry,
                source=Source(config=entry.config),
                problem=problem[:1].lower() + problem[1:],
            )
        text = f"the model of the catalog; the folder of that name is {shown('./' + argument)}"
        notes = (text,) if os.path.isdir(argument) else ()
        spec = entry.spec()
        return Model(id=entry.id, name=entry.name, spec=spec, entry=entry, changes={}, notes=notes)
    from metacount.formats.model import from_hugging_face, from_path

    if name.startswith("type:"):
        model_type = argument[len("type:") :]
        return from_hugging_face(
            {"model_type": model_type},
            argument,
            name=argument,
            source_of={},
            path=argument,
            is_default=True,
        )
    if os.path.lexists(argument) or not _is_repository(argument):
        looks_like_path = os.sep in argument or name.endswith((".json", *ENDINGS))
        if looks_like_path or os.path.lexists(argument):
            return from_path(argument)
    else:
        return _from_repository(argument)
    raise InputError(
        f"model '{shown(argument)}' is not in the catalog and is no file; "
        + nearest(argument, catalog.ids(), "see `metacount models`")
    )


def file_and_name(text: str) -> tuple[str, str] | None:
    """Split FILE.py:NAME into its two parts; return None for anything else.

    >>> file_and_name("mine.py:count"), file_and_name("type:llama")
    (('mine.py', 'count'), None)
    """
    path, _, name = text.rpartition(":")
    named = path.endswith(".py") and path != ".py" and name.isidentifier()
    return (path, name) if named else None


def _is_repository(argument: str) -> bool:
    owner, slash, name = argument.partition("/")
    return (
        bool(slash)
        and "/" not in name
        and not argument.lower().endswith((".json", *ENDINGS))
        and all(
            part and part[0] not in ".-~" and all(c.isalnum() or c in "._-" for c in part)
            for part in (owner, name)
        )
    )


def _from_repository(repository: str) -> Model | TransformersOnly:
    from metacount.formats.model import from_hugging_face
    from metacount.huggingface.hub import read_config

    return from_hugging_face(
        read_config(repository),
        repository,
        name=repository,
        source_of={"repository": repository},
        path=repository,
    )
