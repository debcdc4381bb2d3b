"""What the record of proofs says of a model: what is shown equal to code, and for which sizes.

A proof is of a structure (every switch of a spec, and which sizes it has), of an expression in its
sizes, and of a domain: conditions on sizes, batch and lengths. A figure is said to be proven only
where it is what that expression comes to at the model and workload at hand, which fulfil these.

`benchmarks/prove.py` makes the record; it is read without torch and SymPy. Of each structure it
has the closed forms in the spec's names, conditions on sizes, and for each code and case the
conditions under which a form is what the code does.
"""

from __future__ import annotations

import json
import os

from metacount.frozen import frozen
from metacount.package import read_of_package
from metacount.spec import DTYPE_BYTES, LIMITS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metacount.files import Json
    from metacount.resolve import Model
    from metacount.spec import ModelSpec, Workload
    from metacount.textbook.count import Count


FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "proofs.json")

_read: dict[str, Json] = {}  # by structure, each read once

# Numbers of a spec that no count depends on; prediction modules are counted apart.
NO_COUNTS = (
    "norm_eps",
    "rope_theta",
    "name",
    "rope_scaling",
    "rope_scaling_windowed",
    "query_growth",
    "sinusoid_style",
    "n_mtp_layers",
    "mtp_dense",
    "altup_active",
    "n_sinkhorn_rounds",
    "activation_sparsity",
    "sparsity_pattern",
)
ABSENT = (("d_ff_pattern", "M"), ("head_gate", "none"), ("index_sharing", "I"))
SIZES = frozenset(LIMITS) - {*NO_COUNTS}
RUN_SIZES = frozenset(["B", "S", "S_e"])
SHOWN = 8  # conditions on a screen
FROM = 3  # torch asks of every size whether it is 0 or 1; smaller ones are cases of their own
CODE, OURS = "transformers", "reference"
ZERO_HERE = ", which is 0 at these sizes, not at all sizes"


def structure(spec: ModelSpec) -> str:
    """Write a spec without its sizes, as one key: every switch, and whether a size is there at all.

    A pattern is kept whole; a step of 1 is no step, one width of feed-forwards no pattern. Which
    sizes were letters, and which numbers the others were, is in the conditions of each case.
    """
    words = []
    for name, value in spec.to_dict().items():
        if name in NO_COUNTS or isinstance(value, float) or (name, value) in ABSENT:
            continue
        if name in SIZES:
            value = bool(value) and not (name == "moe_every" and value == 1)
        if value not in (None, False):
            words.append(name if value is True else f"{name}={value}")
    return " ".join(words)


def read_structure(key: str) -> Json | None:
    """Read what is recorded of one structure alone, with the versions of the codes; None where
    nothing is: reading all of the record takes longer than a count.

    `benchmarks/prove.py` writes each structure between lines of two spaces and a brace.
    """
    if key not in _read:
        data = read_of_package(os.path.basename(FILE))
        start = data.index(b',\n "structures": [')
        at = data.find(f'\n  {{\n   "structure": "{key}",'.encode(), start)
        end = data.find(b"\n  }", at)
        versions: Json = json.loads(data[:start] + b"}")
        _read[key] = {} if at < 0 else {**versions, **json.loads(data[at:end] + b"}")}
    return _read[key] or None


def by_side(of_one: Json, own_type: str | None) -> dict[str, list[Json]]:
    """Return the records of a structure by side: of transformers' types the model's own where that
    is recorded, else all.
    """
    sides = {side: [r for r in of_one["records"] if r["side"] == side] for side in (CODE, OURS)}
    own = [record for record in sides[CODE] if record["name"] == own_type]
    return {**sides, CODE: own or sides[CODE]}


@frozen
class Verdict:
    """What is recorded of one quantity at these sizes: `equal`, `chosen`, `differs`, `not said`; or
    `other figure`, where the figure is not what the form that was proven comes to.

    `where` is the domain in words; `text` what is left, what the code does more, or why nothing is
    said.
    """

    quantity: str
    verdict: str
    where: tuple[str, ...] = ()
    text: str = ""


@frozen
class Against:
    """What is recorded against one code: `side` is transformers' (`name` its type) or ours."""

    side: str
    name: str
    verdicts: tuple[Verdict, ...] = ()

    def of(self, *words: str) -> tuple[Verdict, ...]:
        """Select the quantities with one of these verdicts."""
        return tuple(each for each in self.verdicts if each.verdict in words)

    @property
    def where(self) -> tuple[str, ...]:
        """The domain of all that is equal, together."""
        proven = self.of("equal", "chosen")
        return tuple(dict.fromkeys(text for each in proven for text in each.where))

    def to_dict(self) -> dict[str, object]:
        """Convert what is recorded to plain data."""
        return {
            "quantities": [each.quantity for each in self.of("equal")],
            "where": list(self.where),
            "equal_for_chosen_experts": {each.quantity: each.text for each in self.of("chosen")},
            "differs": {each.quantity: each.text for each in self.of("differs")},
            "not_said": {each.quantity: each.text for each in self.of("not said", "other figure")},
        }


@frozen
class Proven:
    """What is recorded for a model and a workload, against transformers' code and ours.

    `own_type` is the model's own type in transformers, where it has one: `code` may be that of
    another type of the same structure. `small`: sizes of the model below `FROM`.
    """

    code: Against | None
    ours: Against | None
    transformers: str
    torch: str
    own_type: str | None = None
    small: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Convert what is recorded to plain data."""
        nothing = Against(side=CODE, name="")
        return {
            "model_type": self.code.name if self.code and self.code.of("equal", "chosen") else None,
            "own_type": self.own_type,
            **(self.code or nothing).to_dict(),
            "reference": (self.ours or nothing).to_dict(),
            "transformers": self.transformers,
            "torch": self.torch,
            "sizes_from": FROM,
            "smaller_here": list(self.small),
        }


def proven_of(model: Model, result: Count) -> Proven | None:
    """Return what is recorded for a model that was looked up, and its figures; None where nothing
    is of its structure, or where transformers refuses its config.
    """
    config = None if model.source is None else model.source.config
    return None if model.refused else proven(model.spec, result, config, own_type=own_type(model))


def count_data(model: Model, result: Count) -> Json:
    """Return the figures of a model that was looked up, as `count --json` prints them."""
    proof = proven_of(model, result)
    figures = result.to_dict()
    stored = None if model.published is None else model.published.stored_checkpoint
    if stored is not None and result.prediction:
        figures["checkpoint_parts"] = result.checkpoint_parts(stored.total)
    return {
        "model": model.id,
        "name": model.name,
        "changes": model.changes,
        "computed": list(model.computed),
        **figures,
        "inferred": list(model.entry.inferred) if model.entry is not None else [],
        "proof": None if proof is None else proof.to_dict(),
    }


def own_type(model: Model) -> str | None:
    """Return a model's type in transformers: that of its config, or of its entry of the catalog."""
    if model.source is not None and model.source.config is not None:
        model_type: str | None = model.source.config.get("model_type")
        return model_type
    return None if model.entry is None else model.entry.model_type


def proven(
    spec: ModelSpec,
    result: Count,
    config: Json | None = None,
    *,
    own_type: str | None = None,
    record: Json | None = None,
) -> Proven | None:
    """Return what is recorded for the figures of a model;
    None where nothing is of its structure.

    `config` is that of the model, where it has one: some conditions are of fields of it alone.
    Of transformers' types the model's own is said, where it is recorded; else one of the same
    structure, if a figure is proven against its code.
    """
    record = read_structure(structure(spec)) if record is None else record
    if record is None:
        return None
    sides, numbers = by_side(record, own_type), _numbers(spec, result.workload)
    at_hand = _AtHand(record, numbers, config or {}, result)
    code = at_hand.best(sides[CODE])
    if code and own_type not in (None, code.name) and not code.of("equal", "chosen"):
        code = None  # what was not shown of another type's code says nothing of this one
    return Proven(
        code=code,
        ours=at_hand.best(sides[OURS]),
        transformers=record["transformers"],
        torch=record["torch"],
        own_type=own_type,
        small=tuple(
            f"{name} = {n}"
            for name, n in numbers.items()
            if name in RUN_SIZES | SIZES and 0 < n < FROM and name != "moe_every"
        ),
    )


def _numbers(spec: ModelSpec, workload: Workload) -> dict[str, int]:
    run = {
        "B": workload.batch_size,
        "S": workload.seq_len,
        "T": workload.seq_len,
        "S_e": workload.encoder_len,
        "prefix_len": workload.prefix_len,
        "bytes_per_value": DTYPE_BYTES[workload.dtype],
    }
    return {name: n for name, n in {**spec.to_dict(), **run}.items() if type(n) is int}


class _AtHand:
    """What is recorded of one structure at some numbers; each condition is asked once."""

    def __init__(self, record: Json, numbers: dict[str, int], config: Json, result: Count) -> None:
        self.conditions, self.config = record["conditions"], config
        self.known = Numbers({**{f"config_{name}": n for name, n in config.items()}, **numbers})
        self.fails = [self.why_not(*condition) for condition in self.conditions]
        self.numbers = Numbers(numbers)
        for name, text in record["layers"].items():
            self.numbers[name] = value(text, self.numbers)
        self.other_figures = {
            quantity: f"{left:,} here, {right:,} by the form that was proven"
            for quantity, text in record["forms"].items()
            if (left := getattr(result, quantity)) != (right := value(text, self.numbers))
        }

    def best(self, records: list[Json]) -> Against | None:
        """Choose of several types that have one structure: most that is equal, then fewest
        conditions, then the plainest name: llama.
        """

        def telling(against: Against) -> tuple[int, int, int]:
            return len(against.of("equal")), -len(against.where), -len(against.name)

        return max(map(self.against, records), key=telling, default=None)

    def against(self, record: Json) -> Against:
        """Judge every quantity that is recorded against one code."""
        by_quantity: dict[str, list[Json]] = {}
        for case in record["cases"]:
            for quantity, recorded in case["quantities"].items():
                by_quantity.setdefault(quantity, []).append(recorded)
        verdicts = tuple(self.verdict(*each) for each in by_quantity.items())
        return Against(side=record["side"], name=record["name"], verdicts=verdicts)

    def verdict(self, quantity: str, cases: list[Json]) -> Verdict:
        """Return the verdict of the first case that is of these sizes; else why none is.

        What is refuted in one case is refuted: another case, in which a size that is 1 hides what
        is wrong, proves nothing.
        """
        if quantity in self.other_figures:
            text = self.other_figures[quantity]
            return Verdict(quantity=quantity, verdict="other figure", text=text)
        if wrong := [case for case in cases if "differs" in case]:
            return Verdict(quantity=quantity, verdict="differs", text=self.difference(wrong))
        shown = [case for case in cases if "problem" not in case]
        missed = []
        for case in shown:
            fails = [why for i in case["where"] if (why := self.fails[i])]
            if not fails:
                words = (self.conditions[i][0] for i in case["where"])
                return Verdict(
                    quantity=quantity,
                    verdict="chosen" if "more" in case else "equal",
                    text=case.get("more", ""),
                    where=tuple(dict.fromkeys(filter(None, words))),
                )
            missed.append((len(fails), fails[0]))
        why = min(missed)[1] if missed else cases[0]["problem"]
        return Verdict(quantity=quantity, verdict="not said", text=why)

    def difference(self, wrong: list[Json]) -> str:
        """Say what is left of a refuted formula, and where, if not at these sizes."""
        fails = [[i for i in case["where"] if self.fails[i]] for case in wrong]
        case, failing = min(zip(wrong, fails, strict=True), key=lambda pair: len(pair[1]))
        text = "; ".join(f"{role} {left}" for role, left in case["differs"].items())
        text += ZERO_HERE if self.why_not("", case["zero"]) == "" else ""
        elsewhere = [says or test for says, test, *_ in map(self.conditions.__getitem__, failing)]
        return text + (f" where {'; '.join(elsewhere)}, which is not so here" * bool(elsewhere))

    def why_not(self, says: str, test: str, defaults: dict[str, list[str]] | None = None) -> str:
        """Say why a condition is not fulfilled; empty where it is.

        `defaults`: of a field that a config alone has, what it is where the config does not give it
        under one of these names.
        """
        try:
            known = Numbers(self.known) if defaults else self.known
            for field, (text, *names) in (defaults or {}).items():
                given = [self.config[name] for name in names if name in self.config]
                known[field] = given[0] if given else value(text, known)
            return "" if not test or value(test, known) else f"shown only where {says or test}"
        except NotKnown as unknown:
            name = str(unknown).removeprefix("config_")
            return f"{says or test}: {name} is not known here"
        except NotReadable:
            return f"{says or test}: cannot be asked"


def sizes_text(where: Sequence[str], small: Sequence[str] = (), most: int | None = None) -> str:
    """Write the sizes for which something was shown: numbers that sizes are held at, those of this
    model below 3, all others from 3 on, and conditions.

    Of a model that meets them all, `most` conditions are enough, and how many others there are.

    >>> sizes_text(["n_kv_heads = 1", "head_dim is even"], ["B = 1"])
    'B = 1, n_kv_heads = 1 and all other sizes from 3, where head_dim is even'
    >>> sizes_text(["head_dim is even", "S > 3", "S > 4"], most=1)
    'all sizes from 3, where head_dim is even; and 2 other conditions, met here (`count --json`)'
    """
    held = dict.fromkeys((*small, *(text for text in where if _is_number(text))))
    rest = [text for text in where if text not in held]
    if most is not None and len(rest) > most:
        n = len(rest) - most
        rest = [*rest[:most], f"and {n} other conditions, met here (`count --json`)"]
    sizes = f"{', '.join(held)} and all other sizes" if held else "all sizes"
    return f"{sizes} from {FROM}" + (f", where {'; '.join(rest)}" if rest else "")


def _is_number(condition: str) -> bool:
    name, equals, number = condition.partition(" = ")
    return bool(equals) and number.isdecimal() and name.isidentifier()


# --- texts of integer arithmetic --------------------------------------------------------------


class NotKnown(Exception):
    """A size that the condition speaks of has no number here."""


class NotReadable(ValueError):
    """A text that is no arithmetic of whole numbers, or divides by 0."""


# No dot, no bracket of a list and no quotation mark: of Python, arithmetic and comparisons alone.
_SIGNS = frozenset(" +-*/%(),<>=!_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Numbers(dict[str, object]):
    """The whole numbers that a text may speak of by their names, and `min`."""

    def __init__(self, numbers: Mapping[str, object]) -> None:
        super().__init__({name: n for name, n in numbers.items() if type(n) is int}, min=min)

    def __missing__(self, name: str) -> object:
        raise NotKnown(name)


def value(text: str, numbers: Mapping[str, object]) -> int:
    """Compute what a text of the record comes to: a number, or whether a comparison holds.

    Raises `NotKnown` for a name without a whole number, `NotReadable`.

    >>> value("-d**2 + (7 - d)//2*d % 4 + min(d, 2)", {"d": 3})
    -5
    >>> value("n_heads % n_kv_heads == 0", {"n_heads": 8, "n_kv_heads": 2})
    True
    """
    if not _SIGNS.issuperset(text):
        raise NotReadable(text)
    known = numbers if isinstance(numbers, Numbers) else Numbers(numbers)
    try:
        computed: int = eval(text, {"__builtins__": {}}, known)
    except (SyntaxError, TypeError, ZeroDivisionError):
        raise NotReadable(text) from None
    return computed
