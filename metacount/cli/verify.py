"""`metacount verify`: every witness of a model side by side."""

from __future__ import annotations

from metacount.cli.answer import Answer, prepare_for_torch
from metacount.cli.count import recorded_notes
from metacount.cli.options import check_quantity, request_of
from metacount.cli.progress import done_of
from metacount.cli.report import Grid, Notes, Text, bold, columns, title, width_of
from metacount.cli.report import shown as in_cell
from metacount.errors import EXIT_DISAGREE, EXIT_INTERRUPTED, InputError, interrupted, shown
from metacount.resolve import Model, find_any
from metacount.settings.values import bytes_size

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from metacount.cli.report import Block, Cell, Report
    from metacount.files import Json
    from metacount.given import TransformersOnly
    from metacount.spec import Request
    from metacount.verify.cases import Case
    from metacount.verify.compare import Verification
    from metacount.verify.for_all_sizes import Proof
    from metacount.verify.forward import Forward

    Proofs = Sequence[tuple[Case, Sequence[Proof]]]


def run(args: argparse.Namespace) -> Answer:
    from metacount import catalog
    from metacount.textbook.count import QUANTITIES, fitted

    if args.all == bool(args.model):
        raise InputError("verify needs either MODEL or --all; see `metacount verify --help`")
    request = request_of(args)
    asked = tuple(dict.fromkeys(args.quantity))
    for name in asked:
        check_quantity(name, QUANTITIES)
    names = args.model or [entry.id for entry in catalog.entries() if entry.sizes is not None]
    models = [find_any(name, args.settings) for name in names]
    memory = None if args.memory is None else bytes_size(args.memory)
    for model in models:
        if isinstance(model, Model):
            fitted(model.spec, request)  # what cannot run is said before the first slow step
        elif args.all_sizes:
            raise InputError(
                f"--all-sizes needs a formula: {shown(model.id)} has none; give a name from "
                "`metacount models`, a config.json, a repository id, or type:NAME of a mapped type"
            )
    for model in models if args.forward else ():
        if not isinstance(model, Model) or model.source is None or model.refused:
            raise InputError(
                f"--forward needs a config that both sides run: {shown(model.id)} has none; give "
                "type:NAME of a mapped type, a config.json or a repository, without --set"
            )
    prepare_for_torch()
    from metacount.verify.compare import verify_model

    done = done_of(lambda model: verify_model(model, request), models, "verifying")
    code = 0 if all(result.agree for result in done) else EXIT_DISAGREE
    stopped = _stopped(done, models, "models")
    proofs: list[Proofs] = []
    if args.all_sizes and not stopped:
        formulas = [model for model in models if isinstance(model, Model)]
        proofs = done_of(lambda model: _proved(model, asked), formulas, "proving")
        if any(proof.differences for cases in proofs for _, each in cases for proof in each):
            code = EXIT_DISAGREE
        stopped = _stopped(proofs, models, "models' proofs")
    forwards: list[Forward] = []
    if args.forward and not stopped:
        doing = "running forwards"
        forwards = done_of(lambda model: _forward(model, args, memory), models, doing)
        if any(forward.agree is False for forward in forwards):
            code = EXIT_DISAGREE
        stopped = _stopped(forwards, models, "models' forwards")

    def report() -> Report:
        if not done:
            return []
        head = report_of(done[0], models[0].name) if len(models) == 1 else many_report(done)
        shown_proofs = (_proofs(m, p, request) for m, p in zip(models, proofs, strict=False))
        ran = [forward_report(m.name, f) for m, f in zip(models, forwards, strict=False)]
        return [*head, *(each for some in shown_proofs for each in some), *ran, [Text(stopped)]]

    def data() -> object:
        results = [result.to_dict() for result in done]
        for each, p in zip(results, proofs, strict=False):  # fewer, where it was interrupted
            each["all_sizes"] = _proofs_data(p)
        for each, forward in zip(results, forwards, strict=False):
            each["forward"] = forward.to_dict()
        return results if len(models) > 1 else results[0]

    return Answer(report=report, data=data, code=EXIT_INTERRUPTED if stopped else code)


def _stopped(done: Sequence[object], models: Sequence[object], what: str) -> str:
    return interrupted(len(done), len(models), what) if len(done) < len(models) else ""


def _proved(model: Model, asked: tuple[str, ...]) -> Proofs:
    """Prove each case of a structure: all sizes as letters first, then those that it has at 1."""
    from metacount.verify.cases import shown_cases
    from metacount.verify.for_all_sizes import prove

    read = model.spec if model.source is None else model.source.config
    return [
        (case, prove(case.model, case.workload, case.run_as, case.quantities))
        for case in shown_cases(read, asked)
    ]


def _proofs(model: Model | TransformersOnly, shown: Proofs, request: Request) -> Report:
    from metacount.textbook.count import count
    from metacount.textbook.proven import proven_of, sizes_text

    recorded = proven_of(model, count(model.spec, request)) if isinstance(model, Model) else None
    sections: list[list[Block]] = []
    if recorded is not None:
        head = Text(f"{model.name}: what is recorded of these formulas", bold, unbroken=True)
        sections.append([head, Notes(recorded_notes(recorded), pad=9)])
    sections.append(
        [Text(f"{model.name}: formula less the form read off code", bold, unbroken=True)]
    )
    pad = max(len(proof.quantity) for _, proofs in shown for proof in proofs)
    code = ""
    for case, proofs in shown:
        notes = [(proof.quantity, _outcome(proof)) for proof in proofs]
        if forms := [proof.form for proof in proofs if proof.form is not None]:
            notes.append(("that is", sizes_text(_where(proofs))))
            code = code or forms[0].source
        sections.append([Text(case.name, bold, unbroken=True), Notes(notes, pad=pad)])
    return [*sections, [Notes([("code", code)], pad=pad)]]


def _outcome(proof: Proof) -> str:
    from metacount.cli.expressions import in_fields

    if proof.problem:
        return f"not shown: {proof.problem}"
    if proof.differences:
        left = "; ".join(f"{role} {in_fields(expr)}" for role, expr in proof.differences.items())
        return f"differs: {left}"
    if proof.idle is not None:
        return (
            f"0 for the experts that a token chose; the code runs {in_fields(proof.idle)} "
            "more FLOPs, on experts that it did not choose"
        )
    return "0: equal for all sizes of this case"


def _where(proofs: Sequence[Proof]) -> list[str]:
    from metacount.cli.expressions import in_fields
    from metacount.verify.for_all_sizes import conditions_of

    conditions = (each.says for proof in proofs for each in conditions_of(proof, in_fields))
    return list(dict.fromkeys(filter(None, conditions)))


def _proofs_data(shown: Proofs) -> list[Json]:
    from metacount.cli.expressions import in_fields
    from metacount.textbook.proven import FROM

    return [
        {
            "quantity": proof.quantity,
            "case": case.name,
            "proven": proof.proven,
            "equal_for_chosen_experts": proof.of_chosen,
            "more_by_code": None if proof.idle is None else in_fields(proof.idle),
            "differences": {role: in_fields(expr) for role, expr in proof.differences.items()},
            "problem": proof.problem,
            "note": "",
            "sizes_from": FROM,
            "domain": _where([proof]),
            "code": None if proof.form is None else in_fields(proof.form.total),
            "source": None if proof.form is None else proof.form.source,
        }
        for case, proofs in shown
        for proof in proofs
    ]


def _forward(
    model: Model | TransformersOnly, args: argparse.Namespace, memory: int | None
) -> Forward:
    from metacount.verify.forward import compare_forwards

    assert isinstance(model, Model)  # it was checked
    return compare_forwards(
        model, device=args.forward, memory=memory, batch_size=args.batch, seq_len=args.seq
    )


def forward_report(name: str, forward: Forward) -> list[Block]:
    """Report how far apart the two forwards of a model are, and what was offloaded for them."""
    from metacount.units import exact, gib
    from metacount.verify.forward import TOLERANCE

    ran = f"batch_size {forward.batch_size}, seq_len {forward.seq_len}, fp32 on {forward.device}"
    title = f"{name}: a forward of both modules, with the same weights"
    head: list[Block] = [Text(title, bold, unbroken=True), Text(ran, unbroken=True)]
    if forward.refused:
        return [*head, Notes([("not run", forward.refused)])]
    apart = "are not finite, or of another shape"
    if forward.largest_difference is not None:
        apart = f"differ by at most {forward.largest_difference:.1e} of the largest"
    text = f"{exact(forward.values)} {forward.compared} of transformers and of the reference"
    text = f"{text} {apart} (allowed in float32: {TOLERANCE:.0e})"
    theirs, ours = map(gib, forward.offloaded_bytes)
    dispatch = f"through accelerate's dispatch: {theirs} of transformers' module, {ours} of ours"
    offloaded = dispatch if any(forward.offloaded_bytes) else ""
    label = "equal" if forward.agree else "DIFFERENT"
    return [*head, Notes([(label, text)], bold), Notes([("offloaded", offloaded)])]


# ---- witnesses


def report_of(result: Verification, name: str) -> Report:
    """Report every quantity with what each witness says, where they come from, and the verdict."""
    from metacount.figures import QUANTITIES

    witnesses, run = result.witnesses, result.workload
    given = {name: [w.figures[name] for w in witnesses] for name in QUANTITIES}
    # nobody has an opinion, or all say that there is none of it
    given = {name: values for name, values in given.items() if not {*values} <= {None, 0}}
    work = f"batch_size {run.batch_size}, seq_len {run.seq_len}, dtype {run.dtype}"
    if run.source_len is not None:
        work += f", source_len {run.source_len}"
    notes = [(w.name, w.detail) for w in witnesses] + [("note", note) for note in result.notes]
    return [
        [title(name, result.model), Text(work, unbroken=True)],
        [_witnesses(result, given)],
        [Notes(notes, pad=max(len(w.name) for w in witnesses))],
        _verdict(result),
    ]


def _witnesses(result: Verification, given: dict[str, list[int | None]]) -> Grid:
    """Lay the witnesses side by side; on a narrow screen a row for each value that is given."""
    names = [w.name for w in result.witnesses]
    rows: list[tuple[Cell, ...]] = [
        (name, *values, _mark(values)) for name, values in given.items()
    ]
    heads = ("", *names, "")
    wide = Grid(heads=heads, rows=rows, align="<" + ">" * len(names) + "<")
    if width_of(heads, [[in_cell(cell) for cell in row] for row in rows]) <= columns():
        return wide
    by_value: list[tuple[Cell, ...]] = []
    for quantity, values in given.items():
        for i, value in enumerate(dict.fromkeys(v for v in values if v is not None)):
            who = [name for name, n in zip(names, values, strict=True) if n == value]
            by_value.append(("" if i else quantity, value, " = ".join(who)))
    return Grid(heads=("", "value", "said by"), rows=by_value, align="<><")


def _mark(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if len({*known}) > 1:
        return "differ"
    return "equal" if len(known) > 1 else ""


def _verdict(result: Verification) -> list[Block]:
    if not result.agree:
        differences = Notes(("", difference) for difference in result.differences)
        return [Text("DISAGREE", bold), differences]
    if len(result.witnesses) == 1:
        return [Notes([("one witness", "there is nothing to compare it with")], bold)]
    exact = ", ".join(w.name for w in result.witnesses if w.figures["params"] is not None)
    agreed = f"{exact}: whatever two of them give, role by role, to the last digit"
    return [Notes([("agree", agreed)], bold)]


def many_report(results: Sequence[Verification]) -> Report:
    """Report a line for each model and a closing line for all."""
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        published = next((w for w in result.witnesses if w.name == "published"), None)
        others = " = ".join(w.name for w in result.witnesses if w.name != "published")
        label: str | None = None if published is None else published.detail.partition(":")[0]
        if published is not None and published.figures["params"] is not None:
            label = "equal" if result.agree else "DIFFERENT"
        params = result.witnesses[0].figures["params"] or 0
        rows.append((result.model, params, others if result.agree else "DISAGREE", label))
    wrong = [result for result in results if not result.agree]
    alone = sum(r.agree and len(r.witnesses) == 1 for r in results)
    sums: list[Block] = [
        Text(f"{len(results) - len(wrong) - alone} of {len(results)} models agree", bold)
    ]
    if alone:
        sums.append(
            Text(f"{alone} with one witness, and nothing to compare it with", unbroken=True)
        )
    for result in wrong:
        sums += [Text(f"{result.model}:", unbroken=True)]
        sums += [Text(line, unbroken=True, indent=2) for line in result.differences]
    heads = ("model", "params", "witnesses", "published")
    return [[Grid(heads=heads, rows=rows, align="<><<")], sums]
