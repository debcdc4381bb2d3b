"""Make a small model like a large one: the sizes that nobody gives follow the width."""

from __future__ import annotations

from fractions import Fraction

from metacount import catalog
from metacount.errors import InputError, nearest, shown

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from metacount.files import Json
    from metacount.spec import ModelSpec

# What keeps its ratio to the residual width.
WIDTHS = (
    "d_ff",
    "d_ff_expert",
    "d_ff_shared",
    "q_lora_rank",
    "kv_lora_rank",
    "d_embedding",
    "d_ssm",
    "dt_rank",
    "n_ssm_heads",
    "n_linear_heads",
    "n_linear_k_heads",
    "n_linear_v_heads",
    "lru_width",
    "n_lru_blocks",
)


def scaled(spec: ModelSpec, changes: Mapping[str, object], name: str) -> tuple[Json, list[str]]:
    """Compute the sizes that follow from those in `changes`, and say in words what was done.

    Widths keep their ratio to d_model, all heads together theirs (those of a mixer with a state
    too), n_kv_heads its ratio to n_heads, and an encoder its ratio of layers. An `InputError` names
    every size whose ratio gives no whole number, and what it may be.

    >>> from metacount.catalog import entry
    >>> sizes, said = scaled(entry("llama-7b").spec(), {"d_model": 256}, "llama-7b")
    >>> said
    ['n_heads=2, n_kv_heads=2, d_ff=688 from the ratios of llama-7b']
    """
    made: Json = {}
    missing: list[str] = []
    new = {**spec.to_dict(), **changes}

    def follow(field: str, ratio: Fraction) -> None:
        """Multiply a size by `ratio`, unless it is given or the model has none."""
        old = getattr(spec, field)
        if not old or field in changes or ratio == 1:
            return
        exact = old * ratio
        if exact.denominator == 1:
            made[field] = new[field] = exact.numerator
        else:
            missing.append(f"{field} ({old:,}·{ratio} is not whole{_may(field, new)})")

    width = Fraction(new["d_model"], spec.d_model)
    if spec.head_dim is not None:
        # all heads together keep their ratio to d_model: more heads are narrower
        of_all = "head_dim" if "n_heads" in changes else "n_heads"
        given = "n_heads" if "n_heads" in changes else "head_dim"
        follow(of_all, width * getattr(spec, given) / new[given])
        follow("rotary_dim", Fraction(new["head_dim"], spec.head_dim))
    else:
        follow("n_heads", width)
    if spec.n_heads is not None:
        follow("n_kv_heads", Fraction(new["n_heads"], spec.n_heads))
    for field in WIDTHS:
        follow(field, width)
    follow("n_encoder_layers", Fraction(new["n_layers"], spec.n_layers))
    if "n_dense_layers" not in changes and spec.n_dense_layers > new["n_layers"]:
        missing.append(f"n_dense_layers (choose 0 to {new['n_layers']})")
    if missing:
        raise InputError(
            f"like {name}, but {_listed(changes)}: --set is missing for {', '.join(missing)}"
        )
    return made, [f"{_listed(made)} from the ratios of {name}"] if made else []


def _listed(sizes: Mapping[str, object]) -> str:
    return ", ".join(f"{field}={value}" for field, value in sizes.items())


def _may(field: str, new: Mapping[str, int]) -> str:
    if field != "n_kv_heads":
        return ""
    heads = new["n_heads"]
    fitting = [str(n) for n in range(1, heads + 1) if heads % n == 0]
    return f"; choose {', '.join(fitting)}"


def template(name: str) -> catalog.CatalogEntry:
    """Find the model of the catalog with that name, or the narrowest one of that family.

    >>> template("llama-13b").id, template("llama3").id
    ('llama-13b', 'llama3-8b')
    """
    if name.lower() in catalog.ids():
        return catalog.entry(name.lower())
    entries = [entry for entry in catalog.entries() if entry.sizes is not None]
    family = [entry for entry in entries if _plain(entry.family) == _plain(name)]
    if not family:
        known = sorted({entry.family.lower() for entry in entries} | {e.id for e in entries})
        raise InputError(
            f"--like '{shown(name)}' is no model and no family of the catalog; "
            + nearest(name, known, "see `metacount models`")
        )
    return min(family, key=lambda entry: (entry.spec().d_model, entry.id))


def _plain(family: str) -> str:
    """Return a family's name in small letters and digits alone: llama3 is Llama 3."""
    return "".join(character for character in family.lower() if character.isalnum())
