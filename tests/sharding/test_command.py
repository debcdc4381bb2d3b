"""`metacount shard` and `metacount fit`: what they print, what they refuse, and their figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import accelerate
import pytest
from helpers.command_line import Ask
from helpers.release import one_day_in
from helpers.small_configs import SMALL_LLAMA

import metacount
from metacount.resolve import find_any, model_of
from metacount.sharding import placed
from metacount.sharding.fit import Device, devices, devices_named
from metacount.sharding.mesh import parse_mesh
from metacount.sharding.placed import place_module

LLAMA = "shard llama-7b --mesh dp=4,tp=2,pp=2 --train"
MIB, GIB = 2**20, 2**30


def asked_again(ask: Ask, command: str, more: str = "") -> Any:
    """What a command that an answer names gives, by formula."""
    return ask.json(f"{command.removeprefix('metacount ')} --formula {more}")


def most(data: Any, name: str) -> int:
    return max(kind[name] for kind in data["kinds"])


# A command, and what it says somewhere: `|` between two.
SAID = {
    f"{LLAMA} --formula": "on 16 ranks: dp=4,tp=2,pp=2; training, ZeRO 3, adamw, attention eager"
    "|largest (rank 0) smallest (rank 8)|kept activations"
    "|at most: what stages hold in a schedule is followed in a run, not counted",
    "shard gpt2 --mesh pp=2 --train --set n_layers=2 --seq 8": "received from stages"
    "|bytes on rank 0, less buffers: parameters",
    f"{LLAMA} --formula --ranks all": "rank 0 with others|rank 8 with others",
    "shard gpt2 --mesh dp=2 --formula": "largest (rank 0)|rank 0 sends nothing",
    # FSDP2, which runs, spreads them in each backward; ZeRO 1 keeps them until the step
    "shard gpt2 --mesh dp=4 --train --zero 1 --formula": "ZeRO 1: gradients are counted wh",
    "shard bert-base --mesh dp=2,tp=2 --formula": "serving, batch 2, seq 512",
    "shard jamba-1.5-mini --mesh dp=2,ep=2 --formula": "KV cache|recurrent state",
    "fit deepseek-v3": "b200: 183,359 MiB by nvidia-smi, driver 580.95.05"
    "|mi300x: AMD Instinct MI300X datasheet: 192 GB HBM3, as its maker",
    "fit gpt2 --gpu h200 --train": "adamw state, no master weights: 8 bytes",
    "fit gpt2 --gpu h200 --train --mixed-precision": "computed with in bf16: 16 bytes",
    "fit gpt2 --gpu h200 --train --optimizer adam8bit": "no master weights: 6 bytes",
}


@pytest.mark.parametrize("line", SAID)
def test_what_is_said(ask: Ask, line: str) -> None:
    text = ask(line)
    assert max(map(len, text.splitlines())) <= 80
    assert all(sentence in " ".join(text.split()) for sentence in SAID[line].split("|"))


@one_day_in(6)
def test_json_has_every_rank_once_and_every_digit(ask: Ask) -> None:
    found = ask.json(f"{LLAMA} --rank 9")
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
    counted = ask.json(f"{LLAMA} --rank 9 --formula")
    # the largest has the peak of a run
    largest, other = found["kinds"]
    assert largest["peak_bytes"] == sum(largest["peak_parts"].values()) > largest["param_bytes"]
    assert counted["kinds"][0] | {n: largest[n] for n in largest if "peak" in n} == largest
    assert counted["kinds"][1] == other


# What is refused in one line, with the start of a part of it.
REFUSED = """
shard llama-7b --mesh dp=8,tp=8 --world 128   makes 8·8 = 64 ranks, not 128; change a degree
shard llama-7b --mesh dp=8,tq=8               no degree 'tq'
shard llama-7b --mesh dp=8,dp=4               gives dp twice
shard llama-7b --mesh dp=0                    --mesh dp must be 1 to 1048576: got 0
shard llama-7b --mesh dp=9999,tp=999          has 9989001 ranks
shard llama-7b --mesh tp=3                    tp must divide n_heads: 32 % 3 = 2; choose 1, 2, 4, 8, 16, 32
shard mixtral-8x7b --mesh dp=4,ep=3           ep must divide dp·cp·tp, the 4 ranks of a stage
shard mixtral-8x7b --mesh dp=16,ep=16         ep must divide n_experts: 8 % 16 = 8
shard llama-7b --mesh dp=2,ep=2               ep needs a model with experts
shard llama-7b --mesh pp=33                   pp must be at most the 32 layers: got 33 stages
shard llama-7b --mesh dp=8 --batch 12         12 % 8 = 4; choose 16
shard gpt2 --mesh dp=2 --seq 5000             at most the 1024 positions of the model: got 5000
shard llama-7b --mesh cp=4 --train --attention flash --seq 36   36 % 8 = 4; choose --seq 40
shard llama-7b --mesh dp=2 --train --optimizer adamv   did you mean adamw, adam8bit?
shard llama-7b --mesh dp=2 --train --optimizer muon    muon looks at whole matrices, of whi
shard llama-7b --mesh dp=2 --train --master-weights    choose --mixed-precision: parameters
shard llama-7b --mesh dp=2 --zero 2           --zero belongs to --train
shard llama-7b --mesh dp=2 --train --kv-dtype fp8   --kv-dtype is of serving
shard llama-7b --mesh dp=2 --kv-dtype fp8     --kv-dtype goes with --formula
shard llama-7b --mesh dp=2 --train --zero 4   --zero must be 0 to 3: got 4
shard llama-7b --mesh dp=2 --rank 2           --rank must be 0 to 1 on this mesh: got 2
shard llama-7b                                shard needs --mesh
shard llama-7b --mesh dp=2 --fits 80          a whole number and GiB or GB, as in 80GiB: got '80'
shard llama-7b --mesh dp=2 --plan nowhere.json   no such file
shard llama-7b --mesh dp=2 -o mesh.gif        -o must end in .svg
shard llama-7b --mesh dp=2 --dtype fp8        fp8 is not one that a module runs in
shard llama-7b --mesh dp=2 --train --mixed-precision --dtype fp32   leave it out
shard llama-7b --mesh tp=8 --train --sequence-parallel --seq 100    choose --seq 104
shard gpt2 --mesh tp=2 --train --sequence-parallel     added to embedded tokens
shard mixtral-8x7b --mesh dp=4,ep=2 --train --checkpointing selective   not for ep > 1
shard pangu-alpha-207b --mesh dp=2            the last layer reads what the first stage holds
shard bloom-176b --mesh tp=2                  no plan for position=alibi
shard zamba2-1.2b --mesh tp=2                 tp has no plan for n_shared_blocks=1, blocks that layers sh
shard jamba-1.5-mini --mesh cp=2 --train      recurrent=mamba, a mixer that keeps a state; ch
shard minimax-m3-text --mesh cp=2             --mesh cp has no plan for index_block_len=128
shard longcat-flash --mesh pp=29              the 28 layers or groups of them that stay together: got
shard type:longcat_flash --mesh dp=2,ep=2     ep has no plan for zero_expert_rows, matrices
shard bert-base --mesh dp=2 --train           pooler has no plan for training on a mesh: no loss
shard t5-small --mesh dp=2                    every layer of the decoder reads what the encoder gave: got 'e
fit mixtral-8x7b --gpu h100-80                did you mean h100-80gb
fit mixtral-8x7b --gpu a100                   'a100' may be a100-40gb or a100-80gb; say which
fit mixtral-8x7b --gpu 8xfoo                  'foo' is unknown; choose among l4,
fit mixtral-8x7b --gpu 8xh100 --devices 4     --devices 4 and --gpu 8xh100-80gb exclude each other
fit mixtral-8x7b --serve --train              --serve does not go with --train
fit mixtral-8x7b --gpu 0xh200                 --devices must be 1 to 1048576: got 0
fit mixtral-8x7b --devices 61 --batch 3       --batch must be a multiple of dp·micro-batches = 61·1 = 61
fit mixtral-8x7b --dtype int4                 4 bits
fit mixtral-8x7b --kv-dtype mxfp4             4 bits
fit gpt2 --cpu-memory 64GB                    --cpu-memory belongs to --device-map
fit gpt2 --device-map auto                    --device-map needs the devices: --gpu h100
fit gpt2 --device-map auto --gpu h100 --train          --device-map does not go with --train
fit gpt2 --device-map auto --gpu h100,l4 --devices 2   --devices goes with one kind of --gpu
fit gpt2 --device-map auto --gpu h100 --cpu-memory 64  a whole number and GiB or GB
fit gpt2 --device-map auto --gpu h100 --dtype fp8      choose one of fp64, fp32, bf16
"""  # noqa: E501


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_what_cannot_be_is_one_line(ask: Ask, row: str) -> None:
    line, said = re.split(" {2,}", row, maxsplit=1)
    assert said in ask.refused(line)


def test_a_plan_is_a_file(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"pp": [1, 11]}))
    uneven = ask.json(f"shard gpt2 --mesh pp=2 --plan {file}")
    assert [kind["layers"] for kind in uneven["kinds"]] == [1, 11]
    for asked, wrong, line in (
        ("gpt2 --mesh pp=2", {"pp": [6, 5]}, "12 in all: got"),
        ("gpt2 --mesh tp=2", {"tp": {"lm_head": "sideways"}}, "style 'sideways' is unknown"),
        ("gpt2 --mesh pp=2", {"dp": 2}, "a plan has tp and pp: got dp"),
        ("gpt2 --mesh pp=2", {"tp": ["lm_head"]}, "tp must be an object"),
        ("gpt2 --mesh pp=2", {"pp": "even"}, "pp must be a list of numbers"),
        # the next layer adds what the experts of one give
        ("longcat-flash --mesh pp=8", {"pp": [7] * 8}, "ends a stage with layer 6, whose experts'"),
        (
            "llama-7b --mesh tp=2 --train --loss-parallel",
            *({"tp": {"decoder.layers.*.mlp.up_proj": "colwise"}}, "leave out --plan"),
        ),
    ):
        file.write_text(json.dumps(wrong))
        assert line in ask.refused(f"shard {asked} --plan {file}")
    found = ask.json("shard longcat-flash --mesh pp=8 --formula")["kinds"]
    assert [kind["layers"] for kind in found for _ in kind["stages"]] == [8, 8, 8, 8, 6, 6, 6, 6]


def test_fits_or_says_what_would(ask: Ask) -> None:
    asked = "shard llama2-70b --mesh tp=2 --formula --json --fits"
    found = {}
    for room, expected in (("141GB", 0), ("40GiB", 1)):
        code, out, _ = ask.all(f"{asked} {room}")
        found[code] = json.loads(out)["fits"]
        assert (code, found[code]["fits"]) == (expected, not expected)
    assert found[1]["total_bytes"] > 40 * GIB
    remedy = asked_again(ask, found[1]["remedy"], "--fits 40GiB")["fits"]
    assert remedy["total_bytes"] <= 40 * GIB


def test_the_total_is_all_that_a_rank_holds_at_once(ask: Ask) -> None:
    stored = ("param_bytes", "gradient_bytes", "optimizer_bytes")
    moments = (
        (*stored, "gathered_bytes", "activation_bytes", "recomputed_bytes", "input_bytes"),
        (*stored, "activation_bytes", "loss_bytes"),  # and gradients of the micro-batch before
        (*stored, "step_bytes", "input_bytes"),
        (*stored, "gathered_bytes", "embedding_bytes", "input_bytes"),
    )
    seen = set()
    for more in ("", "--seq 32768", "--seq 2"):
        way = f"--formula --attention flash --checkpointing full {more}"
        for kind in ask.json(f"{LLAMA} {way}")["kinds"]:
            held = [sum(kind[name] for name in moment) for moment in moments]
            assert kind["total_bytes"] == max(held)
            seen.add(held.index(max(held)))
            assert (kind["loss_bytes"] > 0) is (1 in kind["stages"])
    assert seen == {0, 1, 2}
    served = ("param_bytes", "kv_cache_bytes", "state_bytes")
    (kind,) = ask.json("shard jamba-1.5-mini --mesh dp=2 --formula")["kinds"]
    whole = metacount.count("jamba-1.5-mini", metacount.Workload(seq_len=2048))
    assert [kind[name] for name in served] == [getattr(whole, name) for name in served]
    assert kind["total_bytes"] == sum(kind[name] for name in served)


def test_a_quantised_model_is_served_with_its_weights_as_stored(ask: Ask, tmp_path: Path) -> None:
    """What one device holds is the file and the cache."""
    file = tmp_path / "config.json"
    packed = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    stored = {}
    for keys in ({}, {"quantization_config": packed}):
        file.write_text(json.dumps(SMALL_LLAMA | keys), "utf-8")
        counted = ask.json(f"count {file} --seq 64")
        weights = counted.get("stored_bytes") or counted["param_bytes"]
        fit = ask.json(f"fit {file} --gpu 1xh200,2xh200 --seq 64")
        assert ("stored_weights" in fit) is bool(keys)
        for answer in fit["answers"]:  # two devices: each has a copy
            assert answer["total_bytes"] == weights + counted["kv_cache_bytes"]
        stored[bool(keys)] = weights
    assert stored[True] < stored[False]
    assert "weights  as stored" in ask(f"fit {file} --gpu h200")
    # bf16 parameters are trained
    assert "stored_weights" not in ask.json(f"fit {file} --gpu h200 --train")
    file.write_text(json.dumps(SMALL_LLAMA | {"quantization_config": {"quant_method": "x"}}))
    notes = ask.json(f"fit {file} --gpu h200")["missing"]
    assert any(n.startswith("weights are counted in bf16; how they are stored") for n in notes)


def test_what_is_not_counted_leaves_no_verdict(ask: Ask) -> None:
    device, way = "shard llama-7b --mesh dp=1 --formula --fits", "--train --attention sdpa"
    for line in (f"{device} 1000GB {way}", f"fit llama-7b --gpu b200 {way}"):
        code, out, _ = ask.all(f"{line} --json")
        verdict = json.loads(out).get("fits") or json.loads(out)["answers"][0]
        assert (code, verdict["fits"]) == (1, None) and verdict["unknown"]
        code, out, _ = ask.all(line)
        assert code == 1 and "cannot tell" in out
    # neither where what comes and goes in a block could be more than what is left
    eager = "shard llama-7b --mesh dp=1 --formula --train --seq 8192"
    (kind,) = ask.json(eager)["kinds"]
    total, at_most = kind["total_bytes"] // GIB, kind["most_bytes"] // GIB
    for room, fits in ((at_most + 1, True), (at_most, None), (total + 1, None), (total, False)):
        code, out, _ = ask.all(f"{eager} --fits {room}GiB --json")
        assert (code, json.loads(out)["fits"]["fits"]) == (0 if fits else 1, fits)
    # too little is too little, whatever else there is
    code, out, _ = ask.all(f"{device} 9GB {way}")
    assert code == 1 and "does not fit" in out


@pytest.mark.parametrize("train", ["", "--train"])
def test_an_answer_of_fit_is_a_command_and_no_smaller_mesh_fits(ask: Ask, train: str) -> None:
    found = ask.json(f"fit mixtral-8x7b --gpu h100-80gb,mi300x {train}")
    assert [each["gpu"] for each in found["answers"]] == ["h100-80gb", "mi300x"]
    for each in found["answers"]:
        assert most(asked_again(ask, each["command"]), "total_bytes") == each["total_bytes"]
        assert each["total_bytes"] <= each["most_bytes"] <= each["bytes"]
        # one sequence more for each rank is too many, and so is one token more
        step = each["job"]["mesh"]["dp"] * each["job"]["micro_batches"]
        for option, more in (("batch_size", step), ("seq_len", 1)):
            largest = each[f"largest_{option}"]
            assert largest >= each["job"][option]
            for number, fits in ((largest, True), (largest + more, False)):
                changed = f"--{option.partition('_')[0]} {number}"
                held = most(asked_again(ask, each["command"], changed), "most_bytes")
                assert (held <= each["bytes"]) is fits, changed


@pytest.mark.parametrize(
    ("model", "how", "batch", "seq", "positions"),
    [
        ("gpt2", "", True, 1024, 1024),  # rows of learned positions
        ("bert-base", "", False, 512, 512),
        # asked for, it is run; nothing longer is offered
        (SMALL_LLAMA | {"max_position_embeddings": 1021}, "--seq 1031", True, 1031, 1021),
        # 2^20 is as far as it looks; a state is as large at any length
        (SMALL_LLAMA, "", True, 2**20, None),
        ("mamba2-130m", "", True, None, None),
    ],
)
def test_fit_offers_no_length_beyond_the_positions(
    ask: Ask, tmp_path: Path, model: Any, how: str, batch: bool, seq: Any, positions: Any
) -> None:
    if isinstance(model, dict):
        (tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
        model = tmp_path / "config.json"
    asked = f"fit {model} --gpu h200 {how}"
    (found,) = ask.json(asked)["answers"]
    assert (found["largest_seq_len"], found["positions"]) == (seq, positions)
    assert (found["largest_batch_size"] is not None) is batch
    row = next(line for line in ask(asked).splitlines() if line.startswith("h200 "))
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
    ask: Ask, mesh: str, how: str, said: str | None
) -> None:
    asked = f"shard llama3-70b --mesh {mesh} --formula"
    links = re.findall(r"links with 8 ranks .*?(?= note)", " ".join(ask(f"{asked} {how}").split()))
    assert len(links) == (said is not None)
    if said is not None:
        assert " ".join(re.findall(r"\d+-\d+|[\d.]+ \w+ of [a-z]+(?=$)", links[0])) == said
    sent = [sum(kind["sent_between_machines_bytes"].values()) for kind in ask.json(asked)["kinds"]]
    assert max(sent) == (8192 * 2 * 2049 if said else 0)


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
def test_a_mesh_of_exactly_so_many_devices(ask: Ask, model: str, n: int, how: str) -> None:
    (found,) = ask.json(f"fit {model} --gpu {n}xh100 {how}")["answers"]
    assert ask.json(f"fit {model} --gpu h100 --devices {n} {how}")["answers"] == [found]
    assert (found["fits"], found["devices"], found["world"]) == (True, n, n)
    again = asked_again(ask, found["command"])
    assert (again["world"], most(again, "total_bytes")) == (n, found["total_bytes"])
    assert found["total_bytes"] <= found["most_bytes"] <= 81559 * MIB


@pytest.mark.parametrize(
    ("asked", "remedy", "world"),
    [
        # with eager attention the backward needs 46 GiB of the forward
        ("qwen3-8b --gpu 1xh100 --train", "--attention flash", 1),
        # 16 bytes of each of 70.6e9 parameters, and 4 in the step, are 1,411 GB: 32 of 86 GB
        ("llama3-70b --gpu 8xh100 --train --mixed-precision --attention flash "
         "--checkpointing full", "", 32),
        ("llama3-70b --gpu 2xa100-40gb", "", 4),
    ],
)  # fmt: skip
def test_what_does_not_fit_names_what_would(ask: Ask, asked: str, remedy: str, world: int) -> None:
    code, out, _ = ask.all(f"fit {asked} --json")
    (found,) = json.loads(out)["answers"]
    closest = found["closest"]
    assert (code, found["fits"], closest["fits"]) == (1, False, False)
    assert closest["total_bytes"] > found["usable_bytes"] == closest["bytes"]
    assert parse_mesh(closest["mesh"]).world == found["devices"]
    assert asked.split()[2].startswith(f"{found['devices']}x")
    again = asked_again(ask, closest["remedy"])
    assert closest["remedy"].endswith(remedy) and again["world"] == world
    assert most(again, "most_bytes") <= found["usable_bytes"]
    code, out, _ = ask.all(f"fit {asked}")
    text = " ".join(out.split())
    assert code == 1 and f"the closest is {closest['mesh']} does not fit" in text
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


# ---- where accelerate places parts


AUTO = pytest.mark.skipif(
    tuple(map(int, accelerate.__version__.split(".")[:2])) < (1, 15),
    reason="accelerate before 1.15 balances only devices that are there",
)

TABLE = 2 * 101 * 26  # bytes in bf16
LAYER = 2 * (4 * 26**2 + 3 * 26 * 17 + 2 * 26)
NORM, ROTARY = 2 * 26, 2 * 4 * 13  # frequencies in float32, and as they were at first


def device(n_bytes: int) -> Device:
    return Device(id="toy", name="toy", bytes=n_bytes, source="by hand")


def test_parts_by_hand() -> None:
    # the first device keeps room for the largest layer, as the CPU does; the second is full
    rooms = [device(LAYER + TABLE + LAYER), device(2 * LAYER)]
    found = place_module(
        model_of(SMALL_LLAMA), rooms, device_map="sequential", cpu_memory=2 * TABLE + NORM + ROTARY
    )
    places = [*"0011", *["cpu"] * 3]
    names = ("embed_tokens", *(f"layers.{i}" for i in range(3)), "norm", "rotary_emb")
    names = (*(f"model.{name}" for name in names), "lm_head")
    assert found["parts"] == dict(zip(names, places, strict=True))
    sums = [
        ("0", TABLE + LAYER, 0),
        ("1", 2 * LAYER, 0),
        ("cpu", NORM + TABLE, ROTARY),
    ]
    for place, (key, params, buffers) in zip(found["places"], sums, strict=True):
        assert (place["id"], place["param_bytes"], place["buffer_bytes"]) == (key, params, buffers)
        assert place["accelerate_bytes"] == place["bytes"] == params + buffers
    assert found["formula_bytes"] == 2 * TABLE + 3 * LAYER + NORM
    assert (found["fits"], found["differences"]) == (True, [])
    # a byte less on the second device, and none for the CPU: all after its one layer is on disk
    rooms[1] = device(2 * LAYER - 1)
    less = place_module(model_of(SMALL_LLAMA), rooms, device_map="sequential")
    assert less["parts"]["model.layers.1"] == "1"
    assert less["parts"]["model.layers.2"] == less["parts"]["lm_head"] == "disk"
    assert (less["fits"], less["places"][-1]["room"]) == (False, None)


@AUTO
@pytest.mark.parametrize("model", ["llama3-8b", "type:gpt2", "type:qwen3_next"])
def test_our_count_and_accelerates_are_equal_in_each_place(ask: Ask, model: str) -> None:
    found = ask.json(f"fit {model} --device-map auto --gpu 2xl4,4xh200 --cpu-memory 100GB")
    assert found["differences"] == []
    assert found["param_bytes"] == ask.json(f"count {model}")["param_bytes"]
    for place in found["places"]:
        assert place["bytes"] == place["accelerate_bytes"]
        assert place["room"] is None or place["bytes"] <= place["room"]
    assert [place["name"] for place in found["places"]][:6] == ["l4"] * 2 + ["h200"] * 4
    assert {*found["parts"].values()} <= {place["id"] for place in found["places"]}


@AUTO
def test_what_goes_to_disk_does_not_fit(ask: Ask) -> None:
    asked = "fit llama3-8b --device-map auto --gpu t4 --dtype fp32"
    code, out, _ = ask.all(f"{asked} --json")
    found = json.loads(out)
    assert (code, found["fits"]) == (1, False)
    assert found["kv_cache_bytes"] == 2 * 32 * 8 * 128 * 4 * 2048
    code, text, _ = ask.all(asked)
    assert code == 1 and "does not fit  what no memory holds goes to disk" in text
    assert max(map(len, text.splitlines())) <= 80
    # the CPU holds it
    assert "decoder.layers.13-31  cpu" in ask(f"{asked} --cpu-memory 64GB")


@AUTO
def test_what_has_no_formula_is_placed_too(ask: Ask) -> None:
    found = ask.json("fit type:gemma3 --device-map auto --gpu h100")
    assert find_any("type:gemma3").name
    assert found["formula_bytes"] is found["kv_cache_bytes"] is None
    assert found["param_bytes"] > 10**9
    assert found["differences"] == []


def test_a_difference_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(placed.DTYPE_BYTES, "bf16", 1)
    found = place_module(model_of(SMALL_LLAMA), [device(10**6)], device_map="sequential")
    n = 2 * TABLE + 3 * LAYER + NORM
    said = f"of the module are {n:,} bytes; by formula, in bf16, they are {n // 2:,}"
    assert found["differences"] == [f"all parameters {said}"]
