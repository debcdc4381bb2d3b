"""The nets of numbers: functions of a model's name that rows of numbers.txt call.

Only public names of metacount are asked, so that the package can be rewritten below them.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import metacount
from metacount import Setup, Workload, cli

Data = dict[str, Any]

ATTENTIONS, CHECKPOINTINGS = ("eager", "flash", "sdpa"), ("none", "selective", "full")
QUANTITIES = (
    *("params", "active_params", "matmul_flops", "causal_matmul_flops", "decode_matmul_flops"),
    *("kv_cache_bytes", "state_bytes", "mtp_params", "mtp_active_params", "mtp_matmul_flops"),
    *("mtp_causal_matmul_flops", "mtp_decode_matmul_flops", "mtp_kv_cache_bytes"),
    *("backward_matmul_flops", "backward_matmul_flops:flash", "backward_matmul_flops:sdpa"),
    *("recompute_matmul_flops", "gradient_bytes", "optimizer_bytes", "optimizer_bytes:sgd"),
    *("optimizer_bytes:sgd-momentum", "optimizer_bytes:adafactor", "optimizer_bytes:muon"),
    *("optimizer_bytes:adam8bit", "activation_bytes", "activation_bytes:flash"),
    *("activation_bytes:sdpa", "activation_bytes:full", "activation_bytes:flash:full"),
    *("activation_bytes:sdpa:full", "activation_bytes:selective"),
    *("activation_bytes:flash:selective", "activation_bytes:sdpa:selective"),
)
MESHES: dict[str, Data] = {
    "tp=2": {},
    "tp=4,dp=2": {"batch_size": 6, "seq_len": 33},
    "cp=2": {},
    "ep=2,dp=4": {},
    "pp=2": {"dtype": "fp16"},
    "dp=8": {"train": True},
    "dp=4,tp=2": {"train": True, "zero": 2, "checkpointing": "full"},
    "dp=2,tp=2,pp=2": {"train": True, "zero": 1, "micro_batches": 4, "attention": "flash"},
    "dp=2,pp=2": {"train": True, "schedule": "gpipe", "micro_batches": 6, "mixed_precision": True},
    "dp=4,ep=4": {"train": True, "optimizer": "sgd-momentum", "attention": "sdpa"},
    "dp=2,cp=2": {"train": True, "attention": "flash", "checkpointing": "selective"},
    "dp=16,tp=4,ep=4": {"train": True, "zero": 3, "per_machine": 4, "seq_len": 96},
}
ODD = (None, True, False, 0, 1, 2, 3, 5, -1, 0.5, "gelu", "relu", "swiglu", "none", [], {})
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


@cache
def ids() -> tuple[str, ...]:
    """The models of the catalog that have a spec."""
    return tuple(name for name in metacount.ids() if _spec_or_none(name))


def _spec_or_none(name: str) -> Data | None:
    try:
        return metacount.find_model(name).spec.to_dict()
    except metacount.InputError:
        return None


@cache
def structures() -> tuple[str, ...]:
    """The first model of each structure: those that differ in numbers alone are of one."""
    first: dict[str, str] = {}
    for name in ids():
        spec = metacount.find_model(name).spec.to_dict()
        key = {k: bool(v) if isinstance(v, int | float) else v for k, v in spec.items()}
        first.setdefault(json.dumps(key, sort_keys=True, default=str), name)
    return tuple(first.values())


@cache
def _fields() -> frozenset[str]:
    """Every field of a model, a run and a setup that a refusal may name."""
    records = (metacount.find_model("gpt2").spec, Workload(), Setup())
    return frozenset(name for record in records for name in record.to_dict())


def _refusal(error: Exception | str, names: Iterable[str]) -> str:
    """What stands for a refused request: the first of `names` in its message, reworded or not.

    A config that is left to transformers is told from one that is no model.
    """
    message = str(error)
    field = next((word for word in re.findall(r"\w+", message) if word in names), "?")
    return f"left: {field}" if "has no spec" in message else f"refused: {field}"


def spec(name: str, *settings: str) -> Data:
    """All fields of a model, and what the catalog says of it."""
    model = metacount.find_model(name, settings)
    return {"spec": model.spec, "entry": model.entry, "notes": list(model.notes)}


def counts(model: Any) -> Iterator[Data]:
    """Every figure of `count` at three workloads."""
    for batch_size, seq_len, dtype in ((1, 512, "bf16"), (3, 37, "fp32"), (2, 5003, "fp8")):
        run = Workload(batch_size=batch_size, seq_len=seq_len, dtype=dtype)
        yield {f"{batch_size} {seq_len} {dtype}": metacount.count(model, run).to_dict()}


def training(name: str, attention: str) -> Iterator[Data]:
    """FLOPs, backward, recomputation and saved bytes by role, in every way of training."""
    fields = metacount.find_model(name).spec.to_dict()
    stack = "encoder" if fields["kind"] == "encoder" else "decoder"
    half = [f"{stack}.layers.{n}" for n in range(fields["n_layers"] // 2)]
    parts: dict[str, Data] = {
        "whole": {},
        "half": {"freeze": ("embed_tokens", *half)},
        "lora": {"lora_rank": 3},
        "lora-all": {"lora_rank": 3, "lora_targets": ("all-linear",)},
    }
    for (part, how), dtype, kept in product(parts.items(), ("bf16", "fp32"), CHECKPOINTINGS):
        run = Workload(batch_size=3, seq_len=11, dtype=dtype)
        try:
            setup = Setup(attention=attention, checkpointing=kept, **how)
            step = metacount.count_training(name, run, setup).to_dict()
        except metacount.SpecError as error:
            yield {f"{part} {dtype} {kept}": f"refused: {error.field}"}
            continue
        refused = {what: _refusal(why, _fields()) for what, why in step.pop("uncovered").items()}
        del step["workload"], step["freeze"]
        shown = {what: value for what, value in step.items() if value not in (None, [])}
        yield {f"{part} {dtype} {kept}": {**shown, "refused": refused}}


def sharding(name: str) -> Iterator[Data]:
    """What each rank holds and sends, by formula, on every mesh."""
    for mesh, how in MESHES.items():
        try:
            result: object = metacount.shard(name, mesh, formula=True, **how).to_dict()
        except (metacount.SpecError, metacount.InputError) as error:
            result = _refusal(error, _fields())
        yield {mesh: result}


def forms(name: str) -> Iterator[Data]:
    """The closed form of every quantity: letters, and values at five sets of primes."""
    for quantity in QUANTITIES:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["formula", name, "--quantity", quantity, "--json"])
        if code:
            yield {quantity: _refusal(err.getvalue(), _fields())}
            continue
        for part, form in json.loads(out.getvalue())["parts"].items():
            values = [eval(form["python"], {}, _Sizes(shift)) for shift in range(5)]
            yield {f"{quantity} {part}": [form["letters"], form["value"], *values]}


class _Sizes(dict[str, int]):
    """A prime for each name of a size, the same one wherever it is asked."""

    def __init__(self, shift: int) -> None:
        self.shift = shift

    def __missing__(self, name: str) -> int:
        if name == "min":
            raise KeyError(name)
        return PRIMES[(zlib.crc32(name.encode()) + 5 * self.shift) % len(PRIMES)]


def settings(name: str) -> Iterator[Data]:
    """What each field at each odd value makes of a model: parameters, or the refused field."""
    for field, value in metacount.find_model(name).spec.to_dict().items():
        for odd in _near(value) or ODD:
            text = f"{field}={json.dumps(odd)}".replace('"', "").replace("null", "none")
            try:
                answer: object = metacount.count(metacount.find_model(name, [text])).params
            except (metacount.SpecError, metacount.InputError) as error:
                answer = _refusal(error, _fields())
            yield {text: answer}


def checks(cases: str, first: int) -> Iterator[Data]:
    """What is judged of formulas with a known mistake, every eighth of a file of the tests."""
    file = Path(__file__).parents[2] / "tests" / "check" / "cases" / f"{cases}.json"
    for case in json.loads(file.read_text("utf-8"))[first::8]:
        quantity, formula = case["quantity"], case["formula"]
        result = metacount.check(formula, case["model"], quantity=quantity, timeout=300)
        yield {f"{case['model']} {quantity} {formula}": result.to_dict()}


def html(result: Any) -> str:
    """What a notebook shows of a result."""
    return str(result._repr_html_())


def module() -> Any:
    """A module that nobody here knows."""
    from torch import nn

    return nn.Sequential(nn.Linear(8, 13), nn.LayerNorm(13), nn.GELU(), nn.Linear(13, 5))


# ---- configs


def configs(model_type: str, **needed: Any) -> Iterator[Data]:
    """What is read of 400 configs with one to three keys at odd values: fields of the spec that
    differ from those of the type's default, or the refused key. `needed`: what the default lacks.
    """
    from transformers import CONFIG_MAPPING

    full = {"model_type": model_type, **needed}
    if model_type in CONFIG_MAPPING:  # else its own code would be needed
        full = {**json.loads(CONFIG_MAPPING[model_type]().to_json_string(use_diff=False)), **full}
    bare = {"model_type": model_type, **needed}
    keys = sorted({*full} - {"model_type", "transformers_version", "architectures"})
    plain = _read(full)
    yield {"default": plain, "bare": _differing(plain, _read(bare))}
    for number in range(400):
        draw = random.Random(f"{model_type} {number}")
        changes = {}
        for key in draw.sample(keys, min(len(keys), 1 + number % 3)):
            near = _near(full[key])
            changes[key] = draw.choice(near if near and draw.random() < 0.6 else ODD)
        config = {**(full if number % 2 else bare), **changes}
        yield {f"{number} {json.dumps(changes)}": _differing(plain, _read(config))}


def _read(config: Data) -> Data:
    file = Path("mutated.json")
    file.write_text(json.dumps(config), encoding="utf-8")
    try:
        model = metacount.find_model(str(file))
    except metacount.InputError as error:
        nested = [key for value in config.values() if isinstance(value, dict) for key in value]
        return {"answer": _refusal(error, {*config, *nested, *_fields()})}
    finally:
        file.unlink()
    return {"answer": "read", "notes": len(model.notes), **model.spec.to_dict()}


def _differing(plain: Data, read: Data) -> Data | str:
    return {name: value for name, value in read.items() if plain.get(name) != value} or "the same"


def _near(value: Any) -> list[Any]:
    """Values near one of a config."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, value - 1, value // 2, float(value), str(value)]
    if isinstance(value, float):
        return [value * 2, -value, int(value)]
    if isinstance(value, str):
        return ["silu", "gelu_new", "relu2", "rope", "absolute", "yarn", "frobnicate"]
    if isinstance(value, list):
        return [value[:-1], value[::-1], value + value[-1:], value[1:] + value[:1], [None]]
    if isinstance(value, dict):
        return [
            *({**value, key: near} for key in value for near in _near(value[key])[:2]),
            *({k: v for k, v in value.items() if k != key} for key in value),
            {**value, "frobnication": 1},
        ]
    return []
