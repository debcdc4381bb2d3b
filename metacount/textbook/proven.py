"""What the record of proofs says of a model: what is shown equal to code, and for which sizes.

A proof is of a structure (every switch of a spec, and which sizes it has) and of a domain:
conditions on sizes, batch and lengths, each a text that is asked of the model and workload at hand.
What they do not all fulfil, and what has another source now than when it was proven, is not said to
be proven.
"""

from __future__ import annotations

from metacount.frozen import frozen
from metacount.spec import DTYPE_BYTES
from metacount.textbook.domain import FROM as FROM
from metacount.textbook.domain import NotKnown, NotReadable, holds
from metacount.textbook.fingerprints import has_changed

# also by this name, which benchmarks/carry_proofs.py finds in older checkouts as well
from metacount.textbook.proof_record import CODE as CODE
from metacount.textbook.proof_record import FILE as FILE
from metacount.textbook.proof_record import OURS as OURS
from metacount.textbook.proof_record import SIZES, read_records_of
from metacount.textbook.proof_record import all_said as all_said
from metacount.textbook.proof_record import structure as structure

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.files import Json
    from metacount.spec import ModelSpec, Workload

RUN_SIZES = frozenset(["B", "S", "S_e"])
ZERO_HERE = ", which is 0 at these sizes, not at all sizes"


@frozen
class Said:
    """What is recorded of one quantity at these sizes: `equal`, `chosen`, `differs` or `not said`.

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
            "not_said": {one.quantity: one.text for one in self.of("not said")},
        }


@frozen
class Proven:
    """What is recorded for a model and a workload, against transformers' code and ours."""

    code: Against | None
    ours: Against | None
    transformers: str
    torch: str
    small: tuple[str, ...] = ()  # sizes of the model below FROM

    def to_dict(self) -> dict[str, object]:
        """Convert what is recorded to plain data."""
        nothing = Against(side=CODE, name="", said=())
        return {
            "model_type": self.code.name if self.code and self.code.of("equal", "chosen") else None,
            **(self.code or nothing).to_dict(),
            "reference": (self.ours or nothing).to_dict(),
            "transformers": self.transformers,
            "torch": self.torch,
            "sizes_from": FROM,
            "smaller_here": list(self.small),
        }


def proven(
    spec: ModelSpec,
    workload: Workload,
    config: Json | None = None,
    record: Json | None = None,
) -> Proven | None:
    """Return what is recorded for a model that runs a workload;
    None where nothing is of its structure.

    `config` is that of the model, where it has one: some conditions are of fields of it alone.
    """
    key = structure(spec)
    record = read_records_of(key) if record is None else record
    found = [one for one in record["records"] if one["structure"] == key]
    if not found:
        return None
    numbers = _numbers(spec, workload, config)
    own = (config or {}).get("model_type")
    of_types = [one for one in found if one["side"] == CODE]
    # what is known of a model's own type is said, not what another type has that is better
    of_types = [one for one in of_types if one["name"] == own] or of_types
    of_ours = [one for one in found if one["side"] == OURS]
    asked = _Asked(record, found[0]["conditions"], numbers)
    return Proven(
        code=asked.best(of_types),
        ours=asked.best(of_ours),
        transformers=record["transformers"],
        torch=record["torch"],
        small=tuple(
            f"{name} = {numbers[name]}"
            for name in numbers
            if name in RUN_SIZES | SIZES and 0 < numbers[name] < FROM and name != "moe_every"
        ),
    )


def _numbers(spec: ModelSpec, workload: Workload, config: Json | None) -> dict[str, int]:
    run = {
        "B": workload.batch_size,
        "S": workload.seq_len,
        "T": workload.seq_len,
        "S_e": workload.encoder_len,
        "prefix_len": workload.prefix_len,
        "bytes_per_value": DTYPE_BYTES[workload.dtype],
    }
    fields = {f"config_{name}": value for name, value in (config or {}).items()}
    every = {**fields, **spec.to_dict(), **run}
    return {name: value for name, value in every.items() if type(value) is int}


def _telling(one: Against) -> tuple[int, int, int]:
    """Rank a record: most that is equal first, then fewest conditions,
    then the plainest name: llama.
    """
    return len(one.of("equal")), -len(one.where), -len(one.name)


class _Asked:
    """What is recorded of one structure at some numbers; each condition is asked once."""

    def __init__(self, record: Json, conditions: list[list[str]], numbers: dict[str, int]) -> None:
        self._record, self._conditions, self._numbers = record, conditions, numbers
        self._fails = [self._why_not(says, test) for says, test in conditions]

    def best(self, records: list[Json]) -> Against | None:
        """Choose what says most, of several types that have one structure.

        What rests on a file that changed says nothing, and comes after all others.
        """
        said = [(self._against(one), one) for one in records]
        said.sort(key=lambda pair: _telling(pair[0]), reverse=True)
        names, files = self._record["file_names"], self._record["files"]
        nothing = []
        for against, one in said:
            rests_on = (names[i] for i in one["files"])
            stale = next((name for name in rests_on if has_changed(name, files)), None)
            if stale is None:
                return against
            nothing.append(_unsaid(against, stale))
        return max(nothing, key=_telling, default=None)

    def _against(self, one: Json) -> Against:
        names = dict.fromkeys(name for case in one["cases"] for name in case["quantities"])
        said = tuple(self._said(name, one["cases"]) for name in names)
        return Against(side=one["side"], name=one["name"], said=said)

    def _said(self, quantity: str, cases: Iterable[Json]) -> Said:
        """Return the verdict of the first case that is of these sizes; else why none is.

        What is refuted in one case is refuted: another case, in which a size that is 1 hides what
        is wrong, proves nothing.
        """
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
        text += ZERO_HERE if self._holds(wrong[n]["zero"]) else ""
        elsewhere = [says or test for says, test in map(self._conditions.__getitem__, fails[n])]
        if elsewhere:
            text += f" where {'; '.join(elsewhere)}, which is not so here"
        return Said(quantity=quantity, verdict="differs", text=text)

    def _holds(self, test: str) -> bool:
        try:
            return holds(test, self._numbers)
        except (NotKnown, NotReadable):
            return False

    def _why_not(self, says: str, test: str) -> str:
        """Say why a condition is not fulfilled; empty where it is."""
        try:
            right = not test or holds(test, self._numbers)
            return "" if right else f"shown only where {says or test}"
        except NotKnown as unknown:
            name = str(unknown).removeprefix("config_")
            return f"{says or test}: {name} is not known here"
        except NotReadable:
            return f"{says or test}: cannot be asked"


def _unsaid(against: Against, file: str) -> Against:
    why = f"metacount/{file} is not what was proven"
    said = (Said(quantity=one.quantity, verdict="not said", text=why) for one in against.said)
    return Against(side=against.side, name=against.name, said=tuple(said))
