"""What the record of proofs says of a model: what is shown equal to code, and for which sizes.

A proof is of a structure (every switch of a spec, and which sizes it has), of an expression in its
sizes, and of a domain: conditions on sizes, batch and lengths. A figure is said to be proven only
where it is what that expression comes to at the model and workload at hand, which fulfil these.

The record is made by `benchmarks/prove.py` and read without torch and SymPy. Of each structure it
has the textbook's closed forms, each in total and in the spec's own names; conditions on sizes; and
for each code and case under which of these conditions a form is what the code does, with a digest
of the textbook's and of the code's expression as they were compared.
"""

from __future__ import annotations

import json
import os

from metacount.files import read_of_package
from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES, LIMITS

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
    "activation_sparsity",
    "sparsity_pattern",
)
ONE_WIDTH = ("d_ff_pattern", "M")
SIZES = frozenset(LIMITS) - {*NO_COUNTS}
SHOWN = 8  # conditions on a screen
FROM = 3  # torch asks of every size whether it is 0 or 1; smaller ones are cases of their own
CODE, OURS = "transformers", "reference"


def structure(spec: ModelSpec) -> str:
    """Write a spec without its sizes, as one key: every switch, and whether a size is there at all.

    A pattern is kept whole; a step of 1 is no step, one width of feed-forwards no pattern. Which
    sizes were letters, and which numbers the others were, is in the conditions of each case.
    """
    found = []
    for name, value in spec.to_dict().items():
        if name in NO_COUNTS or isinstance(value, float) or (name, value) == ONE_WIDTH:
            continue
        if name in SIZES:
            value = bool(value) and not (name == "moe_every" and value == 1)
        if value not in (None, False):
            found.append(name if value is True else f"{name}={value}")
    return " ".join(found)


def read_record() -> Json:
    """Read the whole record: `structures`, each with its forms, conditions and records."""
    found: Json = json.loads(read_of_package(os.path.basename(FILE)))
    return found


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
    own = [one for one in sides[CODE] if one["name"] == own_type]
    return {**sides, CODE: own or sides[CODE]}


def all_said(record: Json) -> Iterator[tuple[Json, Json, Json, str, Json]]:
    """Yield (structure, record, case, quantity, what is recorded of it), one after the other."""
    for of_one in record["structures"]:
        for one in of_one["records"]:
            for case in one["cases"]:
                for quantity, found in case["quantities"].items():
                    yield of_one, one, case, quantity, found


RUN_SIZES = frozenset(["B", "S", "S_e"])
ZERO_HERE = ", which is 0 at these sizes, not at all sizes"


@frozen
class Said:
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
    said: tuple[Said, ...]

    def of(self, *verdicts: str) -> tuple[Said, ...]:
        """Select the quantities with one of these verdicts."""
        return tuple(one for one in self.said if one.verdict in verdicts)

    @property
    def where(self) -> tuple[str, ...]:
        """The domain of all that is equal, together."""
        found = (text for one in self.of("equal", "chosen") for text in one.where)
        return tuple(dict.fromkeys(found))

    def to_dict(self) -> dict[str, object]:
        """Convert what is recorded to plain data."""
        return {
            "quantities": [one.quantity for one in self.of("equal")],
            "where": list(self.where),
            "equal_for_chosen_experts": {o.quantity: o.text for o in self.of("chosen")},
            "differs": {one.quantity: one.text for one in self.of("differs")},
            "not_said": {o.quantity: o.text for o in self.of("not said", "other figure")},
        }


@frozen
class Proven:
    """What is recorded for a model and a workload, against transformers' code and ours.

    `own_type` is the model's own type in transformers, where it has one: `code` may be that of
    another type of the same structure.
    """

    code: Against | None
    ours: Against | None
    transformers: str
    torch: str
    own_type: str | None = None
    small: tuple[str, ...] = ()  # sizes of the model below FROM

    def to_dict(self) -> dict[str, object]:
        """Convert what is recorded to plain data."""
        nothing = Against(side=CODE, name="", said=())
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
    inferred = list(model.entry.inferred) if model.entry is not None else []
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
        "inferred": inferred,
        "proof": None if proof is None else proof.to_dict(),
    }


def own_type(model: Model) -> str | None:
    """Return a model's type in transformers: that of its config, or of its entry of the catalog."""
    if model.source is not None and model.source.config is not None:
        found: str | None = model.source.config.get("model_type")
        return found
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
    sides = by_side(record, own_type)
    asked = _Asked(record, _numbers(spec, result.workload), config or {}, result)
    code = asked.best(sides[CODE])
    if code and own_type not in (None, code.name) and not code.of("equal", "chosen"):
        code = None  # what was not shown of another type's code says nothing of this one
    return Proven(
        code=code,
        ours=asked.best(sides[OURS]),
        transformers=record["transformers"],
        torch=record["torch"],
        own_type=own_type,
        small=tuple(
            f"{name} = {n}"
            for name, n in asked.numbers.items()
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


def _telling(one: Against) -> tuple[int, int, int]:
    """Rank a record: most that is equal first, then fewest conditions,
    then the plainest name: llama.
    """
    return len(one.of("equal")), -len(one.where), -len(one.name)


class _Asked:
    """What is recorded of one structure at some numbers; each condition is asked once."""

    def __init__(self, record: Json, numbers: dict[str, int], config: Json, result: Count) -> None:
        self.numbers, self._conditions, self._config = numbers, record["conditions"], config
        self._known = {**{f"config_{name}": n for name, n in config.items()}, **numbers}
        self._fails = [self._why_not(*condition) for condition in self._conditions]
        for name, text in record["layers"].items():
            numbers[name] = value(text, numbers)
        self._other = {
            quantity: f"{here:,} here, {right:,} by the form that was proven"
            for quantity, text in record["forms"].items()
            if (here := getattr(result, quantity)) != (right := value(text, numbers))
        }

    def best(self, records: list[Json]) -> Against | None:
        """Choose what says most, of several types that have one structure."""
        return max(map(self._against, records), key=_telling, default=None)

    def _against(self, one: Json) -> Against:
        names = dict.fromkeys(name for case in one["cases"] for name in case["quantities"])
        said = tuple(self._said(name, one["cases"]) for name in names)
        return Against(side=one["side"], name=one["name"], said=said)

    def _said(self, quantity: str, cases: Iterable[Json]) -> Said:
        """Return the verdict of the first case that is of these sizes; else why none is.

        What is refuted in one case is refuted: another case, in which a size that is 1 hides what
        is wrong, proves nothing.
        """
        if quantity in self._other:
            return Said(quantity=quantity, verdict="other figure", text=self._other[quantity])
        found = [case["quantities"][quantity] for case in cases if quantity in case["quantities"]]
        wrong = [one for one in found if "differs" in one]
        if wrong:
            return self._differs(quantity, wrong)
        missed = []
        for one in found:
            if "problem" in one:
                continue
            fails = [why for i in one["where"] if (why := self._fails[i])]
            if not fails:
                says = (self._conditions[i][0] for i in one["where"])
                return Said(
                    quantity=quantity,
                    verdict="chosen" if "more" in one else "equal",
                    text=one.get("more", ""),
                    where=tuple(dict.fromkeys(filter(None, says))),
                )
            missed.append((len(fails), fails[0]))
        problems = [one["problem"] for one in found if "problem" in one]
        why = min(missed)[1] if missed else problems[0]
        return Said(quantity=quantity, verdict="not said", text=why)

    def _differs(self, quantity: str, wrong: list[Json]) -> Said:
        """Say what is left of a refuted formula, and where, if not at these sizes."""
        fails = [[i for i in one["where"] if self._fails[i]] for one in wrong]
        n = min(range(len(wrong)), key=lambda n: len(fails[n]))
        text = "; ".join(f"{role} {left}" for role, left in wrong[n]["differs"].items())
        text += ZERO_HERE if self._why_not("", wrong[n]["zero"]) == "" else ""
        elsewhere = [says or test for says, test, *_ in map(self._conditions.__getitem__, fails[n])]
        if elsewhere:
            text += f" where {'; '.join(elsewhere)}, which is not so here"
        return Said(quantity=quantity, verdict="differs", text=text)

    def _why_not(self, says: str, test: str, defaults: dict[str, list[str]] | None = None) -> str:
        """Say why a condition is not fulfilled; empty where it is.

        `defaults`: of a field that a config alone has, what it is where the config does not give it
        under one of these names.
        """
        try:
            known = dict(self._known) if defaults else self._known
            for field, (text, *names) in (defaults or {}).items():
                given = [self._config[name] for name in names if name in self._config]
                known[field] = given[0] if given else value(text, known)
            right = not test or holds(test, known)
            return "" if right else f"shown only where {says or test}"
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
    sizes = (
        f"{', '.join(held)} and all other sizes from {FROM}" if held else f"all sizes from {FROM}"
    )
    return sizes + (f", where {'; '.join(rest)}" if rest else "")


def _is_number(condition: str) -> bool:
    name, equals, number = condition.partition(" = ")
    return bool(equals) and number.isdecimal() and name.isidentifier()


# --- texts of integer arithmetic --------------------------------------------------------------
#
# A text is taken apart here, as Python would, and never run. Python's own parser is not asked:
# before its first tree it makes a class for each kind of node, which takes longer than to read all
# of a structure.

LARGEST_POWER = 8


class NotKnown(KeyError):
    """A size that the condition speaks of has no number here."""

    def __str__(self) -> str:
        return str(self.args[0])


class NotReadable(ValueError):
    """A text that is no condition."""


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    " == ": lambda a, b: a == b,
    " != ": lambda a, b: a != b,
    " < ": lambda a, b: a < b,
    " <= ": lambda a, b: a <= b,
    " > ": lambda a, b: a > b,
    " >= ": lambda a, b: a >= b,
}
_NO_SIZES = ("True", "False", "None")
_SIGNS = ("(", ")", "+", "-", "*", "//", "%", ",")


def holds(condition: str, numbers: Mapping[str, int]) -> bool:
    """Tell whether one comparison of whole numbers is true. Raises `NotKnown`, `NotReadable`.

    >>> holds("n_heads % n_kv_heads == 0", {"n_heads": 8, "n_kv_heads": 2})
    True
    >>> holds("S + 1 < window", {"S": 2048})
    Traceback (most recent call last):
    ...
    metacount.textbook.proven.NotKnown: window
    """
    for sign, compared in _COMPARED.items():
        left, found, right = condition.partition(sign)
        if found:
            return compared(value(left, numbers), value(right, numbers))
    raise NotReadable(condition)


def value(text: str, numbers: Mapping[str, int]) -> int:
    """Compute the number that a text stands for. Raises `NotKnown`, `NotReadable`.

    >>> value("-d**2 + (7 - d)//2*d % 4 + min(d, 2)", {"d": 3})
    -5
    """
    spaced = text
    for sign in _SIGNS:
        spaced = spaced.replace(sign, f" {sign} ")
    words = spaced.replace("*  *", "**").split()[::-1]  # the next one stands last
    number = _sum(words, numbers)
    if words:
        raise NotReadable(text)
    return number


def _sum(words: list[str], numbers: Mapping[str, int]) -> int:
    number = _product(words, numbers)
    while words and words[-1] in ("+", "-"):
        sign, other = words.pop(), _product(words, numbers)
        number += other if sign == "+" else -other
    return number


def _product(words: list[str], numbers: Mapping[str, int]) -> int:
    number = _factor(words, numbers)
    while words and words[-1] in ("*", "//", "%"):
        sign, other = words.pop(), _factor(words, numbers)
        if sign == "*":
            number *= other
        elif other == 0:
            raise NotReadable(f"{sign} 0")
        else:
            number = number // other if sign == "//" else number % other
    return number


def _factor(words: list[str], numbers: Mapping[str, int]) -> int:
    """Read a number, a size or what stands in brackets, with its sign and its power."""
    word = words.pop() if words else ""
    if word == "-":
        return -_factor(words, numbers)  # of the power too: -d**2
    if word == "(":
        number = _sum(words, numbers)
        _end(words)
    elif word == "min" and words[-1:] == ["("]:
        words.pop()
        number = _sum(words, numbers)
        while words[-1:] == [","]:
            words.pop()
            number = min(number, _sum(words, numbers))
        _end(words)
    elif word.isascii() and word.isdecimal():
        number = int(word)
    elif word.isidentifier() and word not in _NO_SIZES and words[-1:] != ["("]:
        if type(numbers.get(word)) is not int:
            raise NotKnown(word)
        number = numbers[word]
    else:
        raise NotReadable(word)
    if words[-1:] == ["**"]:
        words.pop()
        power = _factor(words, numbers)
        if not 0 <= power <= LARGEST_POWER:
            raise NotReadable(f"to the power of {power}")
        raised: int = number**power
        return raised
    return number


def _end(words: list[str]) -> None:
    if not words or words.pop() != ")":
        raise NotReadable("a bracket is not closed")
