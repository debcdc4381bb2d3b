"""The record of proofs: read without torch, and never of other sizes than it is of."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from helpers.release import DAY

from metacount.catalog import entries, entry
from metacount.cli import main
from metacount.spec import Workload
from metacount.textbook import fingerprints
from metacount.textbook.proof_record import (
    CODE,
    FILE,
    OURS,
    all_said,
    read_record,
    read_records_of,
    structure,
)
from metacount.textbook.proven import proven

OF_CODE = ["params", "active_params", "matmul_flops", "decode_matmul_flops", "kv_cache_bytes"]
CAUSAL = "causal_matmul_flops"


def record() -> dict[str, Any]:
    return copy.deepcopy(read_record())


def test_every_fingerprint_is_that_of_the_code() -> None:
    found = read_record()
    assert set(found["file_names"]) == set(found["files"])
    stale = {
        name for name in found["files"] if fingerprints.changed([name], found["files"]) is not None
    }
    assert not stale, f"prove again: python benchmarks/prove.py --stale --save ({stale})"
    # a changed comment takes no proof away, but each count would parse the file to see that
    parsed = [
        name
        for name, known in found["files"].items()
        if fingerprints.fingerprint(name)["bytes"] != known["bytes"]
    ]
    assert not parsed, f"python benchmarks/prove.py llama --stale --save writes anew: {parsed}"


def test_a_proof_rests_on_its_formulas_and_its_family_alone() -> None:
    found = read_record()
    files = {
        (one["side"], one["name"]): {found["file_names"][i] for i in one["files"]}
        for one in found["records"]
    }
    llama = files[CODE, "llama"]
    assert {
        "formulas/attention.py",
        "formulas/ffn.py",
        "huggingface/config/families/llama.py",
        "spec/model.py",
        "textbook/closed_form.py",
    } <= llama
    assert not any(name.startswith("modules/") for name in llama)
    assert "formulas/mla.py" not in llama
    assert "huggingface/config/families/gemma.py" not in llama
    ours = files[OURS, "gemma-2b"]
    assert {"modules/attention.py", "modules/model.py", "modules/build.py"} <= ours
    assert not any(name.startswith("huggingface/") for name in ours)
    assert "formulas/moe.py" in files[OURS, "mixtral-8x7b"]


def test_a_changed_constant_takes_the_proof_away(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = entry("llama-7b").spec()
    before = proven(spec, Workload())
    assert before is not None and before.code is not None and before.ours is not None
    assert len(before.code.of("equal")) == 5
    read = fingerprints.source_of
    right, wrong = b'"up_proj": (d_ff, d_model)', b'"up_proj": (2 * d_ff, d_model)'

    def planted(file: str) -> bytes | None:
        source = read(file)
        return source and source.replace(right, wrong)

    assert right in (read("formulas/ffn.py") or b"")
    monkeypatch.setattr(fingerprints.changed, "__defaults__", (planted,))
    after = proven(spec, Workload())
    assert after is not None and after.code is not None and after.ours is not None
    for side in (after.code, after.ours):
        assert side.of("equal", "chosen") == ()
        assert {one.text for one in side.of("not said")} == {
            "metacount/formulas/ffn.py is not what was proven"
        }


def test_whatever_file_changes_no_proof_that_rests_on_it_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = read_record()
    rests_on = {
        (one["side"], one["name"]): {found["file_names"][i] for i in one["files"]}
        for one in found["records"]
    }
    specs = {structure(e.spec()): e.spec() for e in entries() if e.sizes is not None}
    read, left, taken = fingerprints.source_of, 0, 0
    for changed in found["files"]:

        def planted(file: str, changed: str = changed) -> bytes | None:
            source = read(file)
            return source and source + b"\nONE_MORE = 1\n" if file == changed else source

        monkeypatch.setattr(fingerprints.changed, "__defaults__", (planted,))
        for spec in specs.values():
            after = proven(spec, Workload(seq_len=64))
            for against in (after.code, after.ours) if after is not None else ():
                if against is None:
                    continue
                why = f"metacount/{changed} is not what was proven"
                if changed in rests_on[against.side, against.name]:
                    assert {one.text for one in against.of("not said")} == {why}
                    assert not against.of("equal", "chosen", "differs")
                    taken += 1
                else:
                    assert not any(one.text == why for one in against.said)
                    left += 1
    assert left > 500 and taken > 500


def test_another_type_is_named_where_the_files_of_the_first_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = entry("llama-7b").spec()
    whole = record()
    first = proven(spec, Workload(), record=whole)
    assert first is not None and first.code is not None and first.code.name == "llama"
    whole["file_names"].append("gone.py")
    whole["files"]["gone.py"] = {"bytes": "", "code": ""}
    for one in whole["records"]:
        if one["name"] == "llama":
            one["files"].append(len(whole["file_names"]) - 1)
    other = proven(spec, Workload(), record=whole)
    assert other is not None and other.code is not None and other.code.name != "llama"
    assert len(other.code.of("equal")) == 5
    own = proven(spec, Workload(), {"model_type": "llama"}, whole)
    assert own is not None and own.code is not None and own.code.name == "llama"
    assert {one.verdict for one in own.code.said} == {"not said"}


def said(model: str, *, config: dict[str, Any] | None = None, **run: Any) -> dict[str, str]:
    """Quantity -> verdict against our modules."""
    found = proven(entry(model).spec(), Workload(**run), config)
    assert found is not None and found.ours is not None
    return {one.quantity: one.verdict for one in found.ours.said}


def test_a_workload_outside_the_domain_is_not_said_to_be_proven() -> None:
    assert set(said("gpt-oss-20b", seq_len=2048).values()) == {"equal"}
    assert set(said("gpt-oss-20b", seq_len=64).values()) == {"equal"}
    assert said("gpt-oss-20b", seq_len=2)["decode_matmul_flops"] == "not said"
    other = said("gpt-oss-20b", seq_len=2048, dtype="fp8")
    assert [name for name, verdict in other.items() if verdict != "equal"] == ["kv_cache_bytes"]
    # the record without what was shown above the window
    cut = record()
    for one in cut["records"]:
        one["cases"] = [case for case in one["cases"] if "below" in case["name"]]
    spec = entry("gpt-oss-20b").spec()
    below = proven(spec, Workload(seq_len=64), record=cut)
    above = proven(spec, Workload(seq_len=2048), record=cut)
    assert below is not None and above is not None and below.ours and above.ours
    assert not below.ours.of("not said")
    assert {one.quantity for one in above.ours.of("not said")} == {
        "matmul_flops",
        CAUSAL,
        "decode_matmul_flops",
        "kv_cache_bytes",
    }
    assert all("window" in one.text for one in above.ours.of("not said"))


def test_a_proof_of_one_key_value_head_is_none_of_many() -> None:
    assert set(said("gemma-2b").values()) == set(said("gemma-7b").values()) == {"equal"}
    cut = record()
    for one in cut["records"]:
        one["cases"] = [c for c in one["cases"] if c["name"].startswith("n_kv_heads = 1")]
    runs = ("matmul_flops", CAUSAL, "decode_matmul_flops", "kv_cache_bytes")
    for model, verdict in (("gemma-2b", "equal"), ("gemma-7b", "not said")):
        found = proven(entry(model).spec(), Workload(), record=cut)
        assert found is not None and found.ours is not None
        verdicts = {one.quantity: one for one in found.ours.said}
        assert {verdicts[name].verdict for name in runs} == {verdict}
    assert verdicts["params"].text == "shown only where n_kv_heads = 1"


def test_what_is_refuted_for_many_is_not_proven_for_one() -> None:
    planted = record()
    for one in planted["records"]:
        if (one["side"], one["name"]) == (OURS, "gemma-2b"):
            found = one["cases"][0]["quantities"]["params"]
            found |= {
                "differs": {"attention": "n_kv_heads·(n_kv_heads - 1)"},
                "zero": "n_kv_heads**2 - n_kv_heads == 0",
            }
    for model, hidden in (("gemma-2b", True), ("gemma-7b", False)):
        against = proven(entry(model).spec(), Workload(), record=planted)
        assert against is not None and against.ours is not None
        (wrong,) = against.ours.of("differs")
        assert wrong.quantity == "params"
        assert wrong.text.endswith("0 at these sizes, not at all sizes") is hidden


def test_a_size_that_nothing_knows_is_no_proof() -> None:
    planted = record()
    asked = ["S ≤ max_position_embeddings", "S <= config_max_position_embeddings"]
    for one in planted["records"]:
        one["conditions"] = [*one["conditions"], asked]
        for case in one["cases"]:
            for found in case["quantities"].values():
                found.setdefault("where", []).append(len(one["conditions"]) - 1)
    spec = entry("llama-7b").spec()
    for config, verdict in (
        (None, "not said"),
        ({"max_position_embeddings": 4096}, "equal"),
        ({"max_position_embeddings": 512}, "not said"),
    ):
        found = proven(spec, Workload(), config, planted)
        assert found is not None and found.ours is not None
        assert {one.verdict for one in found.ours.said} == {verdict}, config
    unknown = proven(spec, Workload(), None, planted)
    assert unknown is not None and unknown.ours is not None
    assert "max_position_embeddings is not known here" in unknown.ours.said[0].text


def test_the_record_covers_a_model_by_its_structure() -> None:
    found = proven(entry("llama-7b").spec(), Workload())
    assert found is not None and found.code is not None
    assert [one.quantity for one in found.code.of("equal")] == OF_CODE
    # no code of transformers has the structure of Baichuan 2 13B here; our modules have
    original = proven(entry("baichuan2-13b").spec(), Workload(seq_len=64))
    assert original is not None and original.code is None and original.ours is not None
    assert {one.quantity for one in original.ours.of("equal")} == {*OF_CODE, CAUSAL}
    assert proven(entry("llama-7b").spec().replace(qk_norm="l2"), Workload()) is None


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_code_does_besides_is_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "count", "type:llama4_text", "--seq", "64")
    assert "runs more matmul_flops: the formula counts the experts that a token chose" in text
    assert "(n_experts - top_k) more FLOPs, on experts that it did not choose" in text
    assert "unproven active_params: not said to be proven against the code of llama4_text" in text
    proof = json.loads(shown(capsys, "count", "type:llama4_text", "--seq", "64", "--json"))["proof"]
    assert set(proof["equal_for_chosen_experts"]) == {"matmul_flops", "decode_matmul_flops"}
    assert "active_params" in proof["not_said"]
    assert "matmul_flops" not in proof["quantities"]


def test_a_refutation_is_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "count", "type:phimoe", "--seq", "64")
    assert "differs matmul_flops: the formula less the code of phimoe" in text
    assert "(top_k - 2)" in text
    assert "those of another number of experts per token: see matmul_flops" in text
    proof = json.loads(shown(capsys, "count", "type:phimoe", "--seq", "64", "--json"))["proof"]
    assert set(proof["differs"]) == {"matmul_flops", "decode_matmul_flops"}
    assert "params" in proof["quantities"]


def test_all_sizes_is_never_said_without_its_domain(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "count", "gemma-7b")
    assert "all other sizes from 3, where" in text
    assert "head_dim is even" in text
    assert "for all sizes," not in text
    assert "for B = 1, bytes_per_value = 2 and all other" in text
    many = shown(capsys, "count", "gemma-7b", "--batch", "4")
    assert "for bytes_per_value = 2 and all other sizes from 3, where" in many
    one_head = shown(capsys, "count", "gemma-2b")
    assert "n_kv_heads = 1" in one_head


def test_nothing_is_refuted_that_is_not_known_to_be() -> None:
    refuted = {
        (one["name"], quantity)
        for one, _, quantity, found in all_said(read_record())
        if "differs" in found
    }
    assert refuted == {
        # it runs two experts per token whatever the config says
        ("phimoe", "matmul_flops"),
        ("phimoe", "decode_matmul_flops"),
        # its local layers keep every position
        ("gpt_neo", "kv_cache_bytes"),
        ("gpt_neo", "decode_matmul_flops"),
    }


def test_a_refutation_says_where_it_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    below = shown(capsys, "count", "type:gpt_neo", "--seq", "64")  # a window of 256
    assert "where window - 1 ≤ S, which is not so here" in below
    above = shown(capsys, "count", "type:gpt_neo", "--seq", "512")
    assert "(S - window + 1)" in above and "not so here" not in above


def test_a_rewritten_formula_is_carried_over_only_where_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sympy

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    carry = importlib.import_module("carry_proofs")
    before = list(carry.forms_of("llama"))
    assert carry.difference(before, list(carry.forms_of("llama"))) == ""
    d = sympy.Symbol("hidden_size", integer=True, positive=True)
    for change in (
        {"forms": {**before[0]["forms"], "params": {"ffn": 3 * d}}},
        {"numbers": {"n_heads": 7}},
        {"fields": {**before[0]["fields"], "d_ff": d}},
        {"quantities": ("params",)},
    ):
        breached = [{**before[0], **change}, *before[1:]]
        assert carry.difference(before, breached) != "", change
    assert carry.difference(before, before[1:]) == "other cases"


SECONDS = 2  # of this process; the whole record takes most of an hour


def test_some_of_the_record_is_proven_again() -> None:
    """Another choice every day, printed; `benchmarks/prove.py --check` proves all of it."""
    from metacount.verify.cases import cases
    from metacount.verify.recording import of_type, recorded
    from metacount.views.code_form import in_fields

    found = read_record()
    day = os.environ[DAY]
    order = list(found["records"])
    random.Random(day).shuffle(order)
    begun, tried = time.process_time(), []
    for one in order:
        if time.process_time() - begun > SECONDS and tried:
            break
        specs = [
            m.spec()
            for m in entries()
            if m.sizes is not None and structure(m.spec()) == one["structure"]
        ]
        model: Any = of_type(one["name"]) if one["side"] == CODE else specs[0]
        every = list(cases(model, specs[1:] if one["side"] == OURS else ()))
        index = random.Random(day + one["name"]).randrange(len(every))
        tried.append(f"{one['name']} ({one['side']}): {every[index].name}")
        print(f"{day}: {tried[-1]}")
        again = recorded(every[index], in_fields)
        kept = one["cases"][index]
        assert kept["name"] == again["name"]
        for quantity, now in again["quantities"].items():
            was = dict(kept["quantities"][quantity])
            if "where" in was:
                was["where"] = sorted(one["conditions"][i] for i in was["where"])
                now = {**now, "where": sorted(now["where"])}
            assert was == now, f"{tried[-1]}: {quantity}"
    assert tried


def test_the_record_is_read_without_torch_and_is_small() -> None:
    assert Path(FILE).stat().st_size < 2_000_000


def test_what_is_of_one_structure_is_read_as_all_is() -> None:
    whole = read_record()
    keys = {one["structure"] for one in whole["records"]}
    for key in (*keys, "no such structure"):
        expected = {**whole, "records": [o for o in whole["records"] if o["structure"] == key]}
        assert read_records_of(key) == expected


def test_the_record_is_written_as_it_was_read() -> None:
    path = ROOT / "benchmarks" / "prove.py"
    spec = importlib.util.spec_from_file_location("prove", path)
    assert spec is not None and spec.loader is not None
    prove = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prove)
    kept = prove.Record(Path(FILE)).found
    assert len(kept) == len(read_record()["records"])
    # what stands above depends on the versions that are installed
    mark = '"structures": ['
    stored = Path(FILE).read_text("utf-8")
    assert prove.as_text(list(kept.values())).partition(mark)[2] == stored.partition(mark)[2] != ""
