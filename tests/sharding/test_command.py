"""`metacount shard` and `metacount fit`: what they print, what they refuse, and their figures."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import refused, run, run_json
from helpers.release import one_day_in

import metacount
from metacount.cli import main
from metacount.sharding.fit import devices, devices_named
from metacount.sharding.mesh import parse_mesh

LLAMA = ("shard", "llama-7b", "--mesh", "dp=4,tp=2,pp=2", "--train")
MIB, GIB = 2**20, 2**30


def asked_again(capsys: pytest.CaptureFixture[str], command: str, *more: str) -> Any:
    """What a command that an answer names gives, by formula."""
    return run_json(capsys, *shlex.split(command)[1:], "--formula", *more)


def most(data: Any, name: str) -> int:
    return max(kind[name] for kind in data["kinds"])


@pytest.mark.parametrize(
    ("asked", "sentences"),
    [
        (
            " ".join(LLAMA) + " --formula",
            ["on 16 ranks: dp=4,tp=2,pp=2; training, ZeRO 3, adamw, attention eager, bf16",
             "largest (rank 0) smallest (rank 8)", "kept activations",
             "at most: what stages hold in a schedule is followed in a run, not counted"],
        ),
        (
            "shard gpt2 --mesh pp=2 --train --set n_layers=2 --seq 8",
            ["received from stages", "bytes on rank 0, less buffers: parameters"],
        ),
        (" ".join(LLAMA) + " --formula --ranks all", ["rank 0 with others", "rank 8 with others"]),
        ("shard gpt2 --mesh dp=2 --formula", ["largest (rank 0)", "rank 0 sends nothing"]),
        # FSDP2, which runs, spreads them in each backward; ZeRO 1 keeps them until the step
        ("shard gpt2 --mesh dp=4 --train --zero 1 --formula", ["ZeRO 1: gradients are counted wh"]),
        ("shard bert-base --mesh dp=2,tp=2 --formula", ["serving, batch 2, seq 512"]),
        ("shard jamba-1.5-mini --mesh dp=2,ep=2 --formula", ["KV cache", "recurrent state"]),
        ("fit deepseek-v3", ["b200: 183,359 MiB by nvidia-smi, driver 580.95.05",
                             "mi300x: AMD Instinct MI300X datasheet: 192 GB HBM3, as its maker"]),
        ("fit gpt2 --gpu h200 --train", ["adamw state, no master weights: 8 bytes"]),
        ("fit gpt2 --gpu h200 --train --mixed-precision", ["computed with in bf16: 16 bytes"]),
        ("fit gpt2 --gpu h200 --train --optimizer adam8bit", ["no master weights: 6 bytes"]),
    ],
)  # fmt: skip
def test_what_is_said(
    capsys: pytest.CaptureFixture[str], eighty_columns: None, asked: str, sentences: list[str]
) -> None:
    text = run(capsys, *asked.split())
    assert max(map(len, text.splitlines())) <= 80
    assert all(sentence in " ".join(text.split()) for sentence in sentences)


@one_day_in(6)
def test_json_has_every_rank_once_and_every_digit(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, *LLAMA, "--rank", "9")
    assert found["source"].startswith("torch ")
    assert (found["world"], found["zero"], found["batch_size"]) == (16, 3, 8)
    ranks = [
        rank
        for kind in found["kinds"]
        for run_ in kind["ranks"]
        for rank in range(run_["first"], run_["last"] + 1, run_["step"])
    ]
    assert sorted(ranks) == list(range(16))
    # the two ends are equally large: all stages hold 16 layers and one of them
    layer = 4 * 4096**2 + 3 * 4096 * 11008
    whole = 16 * layer + 32000 * 4096
    norms = {0: 32 * 4096, 1: 33 * 4096}
    for stage, kind in enumerate(found["kinds"]):
        assert kind["params"] == (whole // 2 + norms[stage]) // 4
        assert kind["optimizer_bytes"] - 2 * 2 * kind["params"] in (4 * 145, 4 * 146)
    assert found["rank"]["params"] == found["kinds"][1]["params"]
    counted = run_json(capsys, *LLAMA, "--rank", "9", "--formula")
    # the largest has the peak of a run
    largest, other = found["kinds"]
    assert largest["peak_bytes"] == sum(largest["peak_parts"].values()) > largest["param_bytes"]
    assert counted["kinds"][0] | {n: largest[n] for n in largest if "peak" in n} == largest
    assert counted["kinds"][1] == other


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("llama-7b --mesh dp=8,tp=8 --world 128", "makes 8·8 = 64 ranks, not 128; change a degree"),
        ("llama-7b --mesh dp=8,tq=8", "no degree 'tq'"),
        ("llama-7b --mesh dp=8,dp=4", "gives dp twice"),
        ("llama-7b --mesh dp=0", "--mesh dp must be 1 to 1048576: got 0"),
        ("llama-7b --mesh dp=9999,tp=999", "has 9989001 ranks"),
        ("llama-7b --mesh tp=3", "tp must divide n_heads: 32 % 3 = 2; choose 1, 2, 4, 8, 16, 32"),
        ("mixtral-8x7b --mesh dp=4,ep=3", "ep must divide dp·cp·tp, the 4 ranks of a stage"),
        ("mixtral-8x7b --mesh dp=16,ep=16", "ep must divide n_experts: 8 % 16 = 8"),
        ("llama-7b --mesh dp=2,ep=2", "ep needs a model with experts"),
        ("llama-7b --mesh pp=33", "pp must be at most the 32 layers: got 33 stages"),
        ("llama-7b --mesh dp=8 --batch 12", "12 % 8 = 4; choose 16"),
        ("gpt2 --mesh dp=2 --seq 5000", "at most the 1024 positions of the model: got 5000"),
        ("llama-7b --mesh cp=4 --train --attention flash --seq 36", "36 % 8 = 4; choose --seq 40"),
        ("llama-7b --mesh dp=2 --train --optimizer adamv", "did you mean adamw, adam8bit?"),
        ("llama-7b --mesh dp=2 --train --optimizer muon", "muon looks at whole matrices, of whi"),
        ("llama-7b --mesh dp=2 --train --master-weights", "choose --mixed-precision: parameters"),
        ("llama-7b --mesh dp=2 --zero 2", "--zero belongs to --train"),
        ("llama-7b --mesh dp=2 --train --kv-dtype fp8", "--kv-dtype is of serving"),
        ("llama-7b --mesh dp=2 --kv-dtype fp8", "--kv-dtype goes with --formula"),
        ("llama-7b --mesh dp=2 --train --zero 4", "--zero must be 0 to 3: got 4"),
        ("llama-7b --mesh dp=2 --rank 2", "--rank must be 0 to 1 on this mesh: got 2"),
        ("llama-7b", "shard needs --mesh"),
        ("llama-7b --mesh dp=2 --fits 80", "a whole number and GiB or GB, as in 80GiB: got '80'"),
        ("llama-7b --mesh dp=2 --plan nowhere.json", "no such file"),
        ("llama-7b --mesh dp=2 -o mesh.gif", "-o must end in .svg"),
        ("llama-7b --mesh dp=2 --dtype fp8", "fp8 is not one that a module runs in"),
        ("llama-7b --mesh dp=2 --train --mixed-precision --dtype fp32", "leave it out"),
        ("llama-7b --mesh tp=8 --train --sequence-parallel --seq 100", "choose --seq 104"),
        ("gpt2 --mesh tp=2 --train --sequence-parallel", "added to embedded tokens"),
        ("mixtral-8x7b --mesh dp=4,ep=2 --train --checkpointing selective", "not for ep > 1"),
        # models that have no plan for a degree
        ("pangu-alpha-207b --mesh dp=2", "the last layer reads what the first stage holds"),
        ("bloom-176b --mesh tp=2", "no plan for position=alibi"),
        ("zamba2-1.2b --mesh tp=2", "tp has no plan for n_shared_blocks=1, blocks that layers sh"),
        ("jamba-1.5-mini --mesh cp=2 --train", "recurrent=mamba, a mixer that keeps a state; ch"),
        ("minimax-m3-text --mesh cp=2", "--mesh cp has no plan for index_block_len=128"),
        ("longcat-flash --mesh pp=29", "the 28 layers or groups of them that stay together: got"),
        ("type:longcat_flash --mesh dp=2,ep=2", "ep has no plan for zero_expert_rows, matrices"),
        ("bert-base --mesh dp=2 --train", "pooler has no plan for training on a mesh: no loss"),
        ("t5-small --mesh dp=2", "every layer of the decoder reads what the encoder gave: got 'e"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert line in refused(capsys, "shard", *arguments.split())


def test_a_plan_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"pp": [1, 11]}))
    uneven = run_json(capsys, "shard", "gpt2", "--mesh", "pp=2", "--plan", str(file))
    assert [kind["layers"] for kind in uneven["kinds"]] == [1, 11]
    for model, mesh, wrong, line in (
        ("gpt2", "pp=2", {"pp": [6, 5]}, "12 in all: got"),
        ("gpt2", "tp=2", {"tp": {"lm_head": "sideways"}}, "style 'sideways' is unknown"),
        ("gpt2", "pp=2", {"dp": 2}, "a plan has tp and pp: got dp"),
        ("gpt2", "pp=2", {"tp": ["lm_head"]}, "tp must be an object"),
        ("gpt2", "pp=2", {"pp": "even"}, "pp must be a list of numbers"),
        # the next layer adds what the experts of one give
        ("longcat-flash", "pp=8", {"pp": [7] * 8}, "ends a stage with layer 6, whose experts'"),
    ):
        file.write_text(json.dumps(wrong))
        assert line in refused(capsys, "shard", model, "--mesh", mesh, "--plan", str(file))
    found = run_json(capsys, "shard", "longcat-flash", "--mesh", "pp=8", "--formula")["kinds"]
    assert [kind["layers"] for kind in found for _ in kind["stages"]] == [8, 8, 8, 8, 6, 6, 6, 6]
    file.write_text('{"tp": {"decoder.layers.*.mlp.up_proj": "colwise"}}')
    asked = ("--mesh", "tp=2", "--train", "--plan", str(file), "--loss-parallel")
    assert "leave out --plan" in refused(capsys, "shard", "llama-7b", *asked)


def test_fits_or_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("shard", "llama2-70b", "--mesh", "tp=2", "--formula", "--json", "--fits")
    assert main([*asked, "141GB"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"]["fits"] is True
    assert main([*asked, "40GiB"]) == 1
    found = json.loads(capsys.readouterr().out)["fits"]
    assert found["total_bytes"] > 40 * GIB
    remedy = asked_again(capsys, found["remedy"], "--fits", "40GiB")["fits"]
    assert remedy["total_bytes"] <= 40 * GIB


STORED = ("param_bytes", "gradient_bytes", "optimizer_bytes")


def test_the_total_is_all_that_a_rank_holds_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    way = ("--formula", "--attention", "flash", "--checkpointing", "full")
    moments = (
        (*STORED, "gathered_bytes", "activation_bytes", "recomputed_bytes", "input_bytes"),
        (*STORED, "activation_bytes", "loss_bytes"),  # and gradients of the micro-batch before
        (*STORED, "step_bytes", "input_bytes"),
        (*STORED, "gathered_bytes", "embedding_bytes", "input_bytes"),
    )
    seen = set()
    for more in ((), ("--seq", "32768"), ("--seq", "2")):
        for kind in run_json(capsys, *LLAMA, *way, *more)["kinds"]:
            held = [sum(kind[name] for name in moment) for moment in moments]
            assert kind["total_bytes"] == max(held)
            seen.add(held.index(max(held)))
            assert (kind["loss_bytes"] > 0) is (1 in kind["stages"])
    assert seen == {0, 1, 2}
    served = ("param_bytes", "kv_cache_bytes", "state_bytes")
    (kind,) = run_json(capsys, "shard", "jamba-1.5-mini", "--mesh", "dp=2", "--formula")["kinds"]
    assert kind["total_bytes"] == sum(kind[name] for name in served)
    whole = metacount.count("jamba-1.5-mini", metacount.Workload(seq_len=2048))
    assert [kind[name] for name in served] == [getattr(whole, name) for name in served]


SMALL = {
    "model_type": "llama",
    "hidden_size": 26,
    "num_hidden_layers": 3,
    "num_attention_heads": 1,
    "intermediate_size": 17,
    "vocab_size": 101,
}


def test_a_quantised_model_is_served_with_its_weights_as_stored(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What one device holds is the file and the cache."""
    file = tmp_path / "config.json"
    packed = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    stored = {}
    for keys in ({}, {"quantization_config": packed}):
        file.write_text(json.dumps(SMALL | keys), "utf-8")
        counted = run_json(capsys, "count", str(file), "--seq", "64")
        weights = counted.get("stored_bytes") or counted["param_bytes"]
        fit = run_json(capsys, "fit", str(file), "--gpu", "1xh200,2xh200", "--seq", "64")
        assert ("stored_weights" in fit) is bool(keys)
        for answer in fit["answers"]:  # two devices: each has a copy
            assert answer["total_bytes"] == weights + counted["kv_cache_bytes"]
        stored[bool(keys)] = weights
    assert stored[True] < stored[False]
    assert "weights  as stored" in run(capsys, "fit", str(file), "--gpu", "h200")
    # bf16 parameters are trained
    assert "stored_weights" not in run_json(capsys, "fit", str(file), "--gpu", "h200", "--train")
    file.write_text(json.dumps(SMALL | {"quantization_config": {"quant_method": "x"}}), "utf-8")
    notes = run_json(capsys, "fit", str(file), "--gpu", "h200")["missing"]
    assert any(n.startswith("weights are counted in bf16; how they are stored") for n in notes)


def test_what_is_not_counted_leaves_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    way = ("--train", "--attention", "sdpa")
    device = ("shard", "llama-7b", "--mesh", "dp=1", "--formula", "--fits")
    for line in ((*device, "1000GB"), ("fit", "llama-7b", "--gpu", "b200")):
        assert main([*line, *way, "--json"]) == 1
        data = json.loads(capsys.readouterr().out)
        verdict = data.get("fits") or data["answers"][0]
        assert verdict["fits"] is None and verdict["unknown"]
        assert main([*line, *way]) == 1
        assert "cannot tell" in capsys.readouterr().out
    # neither where what comes and goes in a block could be more than what is left
    eager = (*device[:-1], "--train", "--seq", "8192")
    (kind,) = run_json(capsys, *eager)["kinds"]
    total, at_most = kind["total_bytes"] // GIB, kind["most_bytes"] // GIB
    for room, fits in ((at_most + 1, True), (at_most, None), (total + 1, None), (total, False)):
        assert main([*eager, "--fits", f"{room}GiB", "--json"]) == (0 if fits else 1)
        assert json.loads(capsys.readouterr().out)["fits"]["fits"] is fits
    # too little is too little, whatever else there is
    assert main([*device, "9GB", *way]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.mark.parametrize("train", [False, True])
def test_an_answer_of_fit_is_a_command_and_no_smaller_mesh_fits(
    capsys: pytest.CaptureFixture[str], train: bool
) -> None:
    found = run_json(
        capsys, "fit", "mixtral-8x7b", "--gpu", "h100-80gb,mi300x", *(["--train"] if train else [])
    )
    assert [each["gpu"] for each in found["answers"]] == ["h100-80gb", "mi300x"]
    for each in found["answers"]:
        assert most(asked_again(capsys, each["command"]), "total_bytes") == each["total_bytes"]
        assert each["total_bytes"] <= each["most_bytes"] <= each["bytes"]
        # one sequence more for each rank is too many, and so is one token more
        step = each["job"]["mesh"]["dp"] * each["job"]["micro_batches"]
        for option, more in (("batch_size", step), ("seq_len", 1)):
            largest = each[f"largest_{option}"]
            assert largest >= each["job"][option]
            for number, fits in ((largest, True), (largest + more, False)):
                changed = (f"--{option.partition('_')[0]}", str(number))
                held = most(asked_again(capsys, each["command"], *changed), "most_bytes")
                assert (held <= each["bytes"]) is fits, changed


@pytest.mark.parametrize(
    ("model", "how", "batch", "seq", "positions"),
    [
        ("gpt2", "", True, 1024, 1024),  # rows of learned positions
        ("bert-base", "", False, 512, 512),
        # asked for, it is run; nothing longer is offered
        (SMALL | {"max_position_embeddings": 1021}, "--seq 1031", True, 1031, 1021),
        # 2^20 is as far as it looks; a state is as large at any length
        (SMALL, "", True, 2**20, None),
        ("mamba2-130m", "", True, None, None),
    ],
)
def test_fit_offers_no_length_beyond_the_positions(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model: str | dict[str, Any],
    how: str,
    batch: bool,
    seq: int | None,
    positions: int | None,
) -> None:
    if isinstance(model, dict):
        (tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
        model = str(tmp_path / "config.json")
    asked = ("fit", model, "--gpu", "h200", *how.split())
    (found,) = run_json(capsys, *asked)["answers"]
    assert (found["largest_seq_len"], found["positions"]) == (seq, positions)
    assert (found["largest_batch_size"] is not None) is batch
    row = next(line for line in run(capsys, *asked).splitlines() if line.startswith("h200 "))
    assert row.split()[-1] == ("-" if seq is None else f"{seq:,}")


@pytest.mark.parametrize(
    ("mesh", "how", "said"),
    [
        # hidden states of 2,048 tokens and of one, to the second stage: 8192·2·(2048 + 1) bytes
        ("tp=8,pp=2", "--rank 8", "0-7 32.02 MiB of pp"),
        ("tp=8,dp=2", "", ""),  # serving, replicas send each other nothing
        ("tp=8", "", None),
    ],
)
def test_what_leaves_a_machine_is_of_the_kind_that_sends_most(
    capsys: pytest.CaptureFixture[str], mesh: str, how: str, said: str | None
) -> None:
    asked = ("shard", "llama3-70b", "--mesh", mesh, "--formula", *how.split())
    text = " ".join(run(capsys, *asked).split())
    links = re.findall(r"links with 8 ranks .*?(?= note)", text)
    assert len(links) == (said is not None)
    if said is not None:
        assert " ".join(re.findall(r"\d+-\d+|[\d.]+ \w+ of [a-z]+(?=$)", links[0])) == said
    kinds = run_json(capsys, *asked[:5])["kinds"]
    sent = max(sum(kind["sent_between_machines_bytes"].values()) for kind in kinds)
    assert sent == (8192 * 2 * 2049 if said else 0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--gpu h100-80", "did you mean h100-80gb"),
        ("--gpu a100", "'a100' may be a100-40gb or a100-80gb; say which"),
        ("--gpu 8xfoo", "'foo' is unknown; choose among l4, "),
        ("--gpu 8xh100 --devices 4", "--devices 4 and --gpu 8xh100-80gb exclude each other"),
        ("--serve --train", "--serve does not go with --train"),
        ("--gpu 0xh200", "--devices must be 1 to 1048576: got 0"),
        ("--devices 61 --batch 3", "--batch must be a multiple of dp·micro-batches = 61·1 = 61"),
        ("--dtype int4", "4 bits"),
        ("--kv-dtype mxfp4", "4 bits"),
    ],
)
def test_what_fit_cannot_search_is_one_line(
    capsys: pytest.CaptureFixture[str], asked: str, said: str
) -> None:
    assert said in refused(capsys, "fit", "mixtral-8x7b", *asked.split())


def test_devices_have_sizes_and_sources() -> None:
    known = devices()
    assert known["h100-80gb"].bytes == 81559 * MIB
    for name, device in known.items():
        assert (device.id, name) == (name, name.lower())
        words = ("datasheet", "specifications") if device.by_maker else ("nvidia-smi",)
        assert any(word in device.source for word in words)
        assert device.bytes % (10**9 if device.by_maker else MIB) == 0
    # a process gets what CUDA said when we measured
    figures = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu-ffn.jsonl"
    measured, h200 = json.loads(figures.read_text().splitlines()[0]), known["h200"]
    assert (measured["device"], measured["memory_bytes"]) == (h200.name, h200.room)
    assert f"driver {measured['driver']}" in h200.source
    assert h200.room < h200.bytes
    named = devices_named("H100,nvidia h100,A100 80GB,a100_40gb,L4,RTX-4090,4xmi300x")
    ids = ["h100-80gb", "h100-80gb", "a100-80gb", "a100-40gb", "l4", "rtx-4090", "mi300x"]
    assert named == [(known[name], 4 if name == "mi300x" else None) for name in ids]


@pytest.mark.parametrize(
    ("model", "n", "how"),
    [
        ("llama3-8b", 6, "--train --attention flash --mixed-precision"),
        ("mixtral-8x7b", 16, "--train --checkpointing full"),
        ("llama3-70b", 3, ""),
    ],
)
def test_a_mesh_of_exactly_so_many_devices(
    capsys: pytest.CaptureFixture[str], model: str, n: int, how: str
) -> None:
    asked = ("fit", model, "--gpu", f"{n}xh100", *how.split())
    (found,) = run_json(capsys, *asked)["answers"]
    others = run_json(capsys, "fit", model, "--gpu", "h100", "--devices", str(n), *how.split())
    assert others["answers"] == [found]
    assert (found["fits"], found["devices"], found["world"]) == (True, n, n)
    again = asked_again(capsys, found["command"])
    assert (again["world"], most(again, "total_bytes")) == (n, found["total_bytes"])
    assert found["total_bytes"] <= found["most_bytes"] <= 81559 * MIB


@pytest.mark.parametrize(
    ("model", "gpu", "how", "remedy", "world"),
    [
        # with eager attention the backward needs 46 GiB of the forward
        ("qwen3-8b", "1xh100", "--train", "--attention flash", 1),
        # 16 bytes of each of 70.6e9 parameters, and 4 in the step, are 1,411 GB: 32 of 86 GB
        ("llama3-70b", "8xh100", "--train --mixed-precision --attention flash "
         "--checkpointing full", "", 32),
        ("llama3-70b", "2xa100-40gb", "", "", 4),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_what_would(
    capsys: pytest.CaptureFixture[str], model: str, gpu: str, how: str, remedy: str, world: int
) -> None:
    asked = ("fit", model, "--gpu", gpu, *how.split())
    assert main([*asked, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["answers"]
    closest = found["closest"]
    assert found["fits"] is closest["fits"] is False
    assert closest["total_bytes"] > found["usable_bytes"] == closest["bytes"]
    assert parse_mesh(closest["mesh"]).world == found["devices"] == int(gpu.partition("x")[0])
    assert closest["remedy"].endswith(remedy)
    again = asked_again(capsys, closest["remedy"])
    assert again["world"] == world
    assert most(again, "most_bytes") <= found["usable_bytes"]
    assert main(asked) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert f"the closest is {closest['mesh']} does not fit" in text
    assert closest["remedy"] in text


@one_day_in(6)
def test_four_thousand_ranks_within_a_gibibyte() -> None:
    program = (
        "from metacount.cli import main; "
        "main(['shard', 'llama3.1-405b', '--mesh', 'dp=64,tp=8,pp=8', '--train', '--json']); "
        # getrusage's own maximum begins with what the process that started this one had
        "status = open('/proc/self/status').read(); "
        "print(status.split('VmHWM:')[1].split()[0])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    text, _, last = ran.stdout.rstrip().rpartition("\n")
    assert sum(kind["count"] for kind in json.loads(text)["kinds"]) == 4096
    assert int(last) < 2**20
