"""`metacount flow`: every step that ran, once, with figures that add up and letters that hold."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from helpers.command_line import refused, run, run_json
from helpers.release import daily, one_day_in, one_in
from helpers.small_configs import GEMMA4, SMALL
from torch import Tensor, nn

import metacount
from metacount import catalog
from metacount.cli import main
from metacount.cli.flow import report_of
from metacount.cli.report import in_text
from metacount.flow import letters as sizes
from metacount.flow.equations import of_torch
from metacount.flow.run import flow, reference_steps
from metacount.flow.steps import Seen, Step, summed
from metacount.huggingface.config.keys import words
from metacount.huggingface.config.to_spec import spec_from_config
from metacount.modules.build import build
from metacount.modules.norm import RMSNorm
from metacount.spec import ModelSpec, Workload
from metacount.textbook.count import count

BUILT = [entry.id for entry in catalog.entries() if entry.sizes is not None]
# One of each: placement of norms, kind of position, attention, feed-forward, stacks.
KINDS = sorted(
    words("""
    gpt2 bert-base t5-small mixtral-8x7b deepseek-v3 gemma2-2b bloom-176b gpt-oss-20b pythia-12b
    olmo2-1b glm-130b transformer-base switch-base-8 phi3.5-moe pangu-alpha-207b gopher-280b
    llama4-scout-text
""")
)
# One of each mixer that keeps a state, and the indexer: FLOPs and parameters of a step of theirs
# may be a sum that no product of letters gives.
MIXERS = sorted(
    words("""
    falcon-mamba-7b falcon-h1-0.5b bamba-9b nemotron-h-8b olmo-hybrid-7b qwen3-next-80b-a3b
    kimi-linear-48b-a3b minimax-text-01 xlstm-7b lfm2-1.2b recurrentgemma-2b deepseek-v3.2
    minimax-m3-text longcat-flash zamba2-1.2b gemma-3n-e2b-text
""")
)


def shallow(name: str) -> ModelSpec:
    """A model of the catalog with few layers, every kind of them."""
    spec = catalog.entry(name).spec()
    fewer = {n: min(getattr(spec, n), 4) for n in ("n_layers", "n_encoder_layers")}
    if spec.n_shared_blocks is not None:  # the first layer that uses one is further up
        fewer["n_layers"] = spec.mixer_pattern.index("S") + 1
        fewer["n_shared_blocks"] = 1
    if spec.n_kv_shared_layers:  # the first layer that sees everything is the fifth
        fewer |= {"n_layers": 6, "n_kv_shared_layers": 1}
    if spec.recurrent == "mlstm":  # a whole chunk: elsewhere other numbers of steps are left over
        fewer["linear_chunk_size"] = 29
    return spec.replace(**fewer)


def short(spec: ModelSpec) -> Workload:
    return Workload(batch_size=3, seq_len=29, source_len=31 if spec.has_encoder else None)


def every(steps: tuple[Step, ...]) -> list[Step]:
    return [one for step in steps for one in (step, *every(step.inside))]


@pytest.mark.parametrize(
    ("scale", "said"), [("0.3", "x = 0.5·x + 0.3·(attn + ffn)"), ("1", "x = 0.5·x + attn + ffn")]
)
def test_parallel_branches_are_added_with_their_factors(
    capsys: pytest.CaptureFixture[str], scale: str, said: str
) -> None:
    sizes = ("n_layers=1", "residual_weight=0.5", f"residual_scale={scale}")
    text = run(capsys, "flow", "pythia-12b", *(word for size in sizes for word in ("--set", size)))
    assert said in text


@daily(13)
@pytest.mark.parametrize("name", one_in(11, BUILT))
def test_the_steps_of_every_model_add_up(name: str) -> None:
    spec = catalog.entry(name).spec()
    workload = short(spec)
    module, counted = build(spec), count(spec, workload).to_dict()
    steps = reference_steps(module, workload)
    assert summed(steps)["flops"] == counted["matmul_flops"]
    assert summed(steps)["params"] == counted["params"]
    if spec.kind != "encoder":
        steps = reference_steps(module, workload, decode=True)
        assert summed(steps)["flops"] == counted["decode_matmul_flops"]


@pytest.mark.parametrize(
    ("name", "more"), [("mimo_v2_flash", {}), ("laguna", {}), ("gemma4_text", GEMMA4)]
)
def test_letters_of_heads_that_windows_have_for_themselves(name: str, more: Any) -> None:
    spec = spec_from_config({"model_type": name, **SMALL[name], **more}).spec
    workload = Workload(seq_len=11)
    assert summed(flow(spec, workload).steps)["flops"] == count(spec, workload).matmul_flops


# Sizes beside those that letters were told by: no primes, but as different from each other.
THIRD = {
    "BATCHES": (4,),
    "COUNTS": ((6, 10, 9, 14),),
    "LENGTHS": ((33, 38),),
    "POSITIONS": (90,),
    "WIDTHS": (tuple(range(40, 200, 7)),),
    "WINDOWS": {"inside": (8,), "beyond": (500,)},
    "SMALL": {
        "top_k": (3,), "n_shared_experts": (2,), "n_token_types": (4,), "top_groups": (3,),
        "n_groups": (4,), "conv_kernel": (4,), "linear_chunk_size": (6,), "ssm_chunk_size": (6,),
    },
}  # fmt: skip


def value(term: str, letters: dict[str, int]) -> Any:
    """What a name in letters is at some sizes."""
    text = "".join({"·": "*", "²": "**2", "³": "**3"}.get(c, c) for c in term)
    whole = {name: Fraction(n) for name, n in letters.items()}
    return eval(text, {"__builtins__": {}}, whole)


@daily(14)
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("name", one_in(5, (*KINDS, *MIXERS)))
def test_every_step_is_explained_and_its_letters_hold_at_other_sizes(
    name: str, decode: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = shallow(name)
    if decode and spec.kind == "encoder":
        return
    found = flow(spec, short(spec), decode=decode)
    assert found.unused == 0 or (decode and spec.has_encoder)
    for table, values in THIRD.items():
        monkeypatch.setattr(sizes, table, values)
    monkeypatch.setattr(sizes, "RUNS", 1)
    ((other, workload, letters),) = sizes.other_sizes(spec, short(spec), decode=decode)
    again = every(reference_steps(build(other), workload, decode=decode))
    told = every(found.steps)
    assert [step.name for step in told] == [step.name for step in again]
    for step, there in zip(told, again, strict=True):
        assert step.inside or step.equation, step
        for ours, theirs in (
            (step.input_letters, there.inputs),
            (step.output_letters, there.outputs),
        ):
            for shape, there_shape in zip(ours, theirs, strict=True):
                for term, size in zip(shape, there_shape, strict=True):
                    named = term is not None or name not in MIXERS
                    assert not named or value(term or "None", letters) == size, step
        if not step.inside and name in MIXERS:
            for term, n in ((step.flops_letters, there.flops), (step.params_letters, there.params)):
                assert term is None or value(term, letters) == n, step
        elif not step.inside:
            assert value(step.flops_letters or "None", letters) == there.flops
            assert value(step.params_letters or "None", letters) == there.params


def test_equations_are_shown_only_where_their_operators_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = RMSNorm.forward
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: plain(self, x).sin())
    found = flow("llama-7b", Workload(seq_len=8))
    norms = [step for step in every(found.steps) if step.module == "RMSNorm"]
    assert {step.equation for step in norms} == {None}
    assert {step.operators[-1] for step in norms} == {"sin"}
    (line,) = [one for one in in_text(report_of(found)).splitlines() if one.startswith("  norm ")]
    assert line.split() == [
        "norm",
        *["RMSNorm:", "pow", "mean", "add", "rsqrt", "mul", "sin", "4.10K"],
    ]


def small(name: str, **changes: Any) -> ModelSpec:
    return catalog.entry(name).spec().replace(**changes)


@one_day_in(6)
def test_periods_fold_in_periods() -> None:
    # seven of eight layers are of one kind, every second one has experts
    found = flow("type:jamba", Workload(seq_len=8))
    (model,) = [step for step in found.steps if step.name == "model"]
    (period,) = [step for step in model.inside if step.times > 1]
    assert (period.name, period.times) == ("layers.0-31", 4)
    assert [step.name for step in period.inside] == [
        "layers.0-3",
        "layers.4",
        "layers.5",
        "layers.6",
        "layers.7",
    ]
    assert [step.like for step in period.inside][2:] == ["layers.1", "layers.0", "layers.1"]
    assert found.params + found.unused == metacount.summary("type:jamba").params


@one_day_in(6)
def test_one_layer_of_many(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_json(capsys, "flow", "deepseek-v3")
    assert set(whole["letters"]) >= {"B", "S", "d", "d_c", "d_r"}
    for path, n in (("layers.3", 1), ("decoder.layers.17", 1), ("self_attn", 2)):
        data = run_json(capsys, "flow", "deepseek-v3", "--only", path)
        assert [step["times"] for step in data["steps"]] == [1] * n
    (layer,) = run_json(capsys, "flow", "deepseek-v3", "--only", "layers.17")["steps"]
    latent = next(s for s in layer["steps"] if s["name"] == "self_attn")["steps"]
    down = next(s for s in latent if s["name"] == "kv_a_proj_with_mqa")
    assert down["outputs"] == [{"shape": [1, 2048, 576], "letters": ["B", "S", "d_c + d_r"]}]
    assert down["matmul_flops_letters"] == "2·B·S·d·(d_c + d_r)"


@one_day_in(6)
def test_a_config_runs_transformers_own_module(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "flow", "type:gpt2", "--seq", "16", "--decode", "--batch", "2")
    assert (data["source"], data["unused_params"]) == ("transformers", 0)
    letters = {name: one["value"] for name, one in data["letters"].items()}
    assert letters == {"B": 2, "T": 16}
    text = run(capsys, "flow", "type:gpt2", "--seq", "16")
    assert "hidden_states = attn_output + residual" in text  # the statement that ran
    ours = run_json(capsys, "flow", "type:gpt2", "--seq", "16", "--reference")
    theirs = run_json(capsys, "flow", "type:gpt2", "--seq", "16")
    assert ours["source"] == "reference"
    assert ours["matmul_flops"] == theirs["matmul_flops"]


@daily(4)
@pytest.mark.parametrize(
    ("name", "width"), [("deepseek-v3", 80), ("t5-small", 80), ("type:mixtral", 80), ("gpt2", 120)]
)
def test_no_line_wraps(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for option in ((), ("--decode",)):
        lines = run(capsys, "flow", name, "--seq", "64", *option).splitlines()
        assert max(map(len, lines)) <= width
        assert all(line == line.rstrip() for line in lines)


WRONG = [
    (("bert-base", "--decode"), "writes no tokens"),
    (("type:bert", "--decode", "--seq", "8"), "cannot decode"),
    (("llama-7b", "--depth", "0"), "at least 1"),
    (("llama-7b", "--only", "layers.99"), "no step ran there"),
    (("llama-7b", "--only", "self_atn"), "did you mean"),
    (("llama-7",), "did you mean"),
    (("type:rwkv", "--reference"), "no reference module"),
    (("gpt2", "--source-len", "5"), "encoder-decoder"),
    (("llama-7b", "--set", "n_kv_heads=5"), "must divide"),
]


@daily(3)
@pytest.mark.parametrize(("arguments", "said"), WRONG)
def test_a_wrong_request_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "flow", *arguments)


MINE = """
from torch import nn
print("made")

class Expert(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 256), nn.Linear(256, width)

    def forward(self, x):
        hidden = self.up(x).relu()
        return self.down(hidden)

class Wants(nn.Module):
    def __init__(self, width):
        super().__init__()

number = 3
"""


def test_of_a_file_of_ones_own(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    data = run_json(capsys, "flow", f"{file}:Expert", "--input", "2,16,64")
    assert (data["matmul_flops"], data["params"]) == (2 * 2 * 16 * 64 * 256 * 2, 33088)
    assert [step["code"] for step in data["steps"]][1] == "hidden = self.up(x).relu()"
    for arguments, said in (
        ("Wants --input 2", "without arguments"),
        ("number --input 2", "is no module"),
        ("Exprt --input 2", "it has Expert, Wants"),
        ("Expert", "needs --input"),
        ("Expert --input 2,x", "--input is sizes"),
        ("Expert --input 2,3", "fails on [2, 3]"),
        ("Expert --input 2,64 --decode", "leave it out"),
    ):
        name, *rest = arguments.split()
        assert main(["flow", f"{file}:{name}", *rest]) == 2
        printed = capsys.readouterr()
        assert said in printed.err
        assert printed.out == ""


def computed(equation: str, names: dict[str, Any]) -> Tensor:
    """What the right side of an equation gives, its signs read as Python's."""
    text = equation.partition(" = ")[2].replace("relu²(", "relu2(")
    for sign, ours in {
        "²": "**2",
        "·": "*",
        "√": "sqrt",
        "−": "-",
        "ε": "eps",
        "σ": "sigmoid",
    }.items():
        text = text.replace(sign, ours)
    functions = {name: getattr(torch, name) for name in ("sqrt", "sigmoid", "relu")}
    functions |= {
        "silu": torch.nn.functional.silu,
        "relu2": lambda x: x.relu() ** 2,
        "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "mean": lambda x: x.mean(-1, keepdim=True),
        "var": lambda x: x.var(-1, keepdim=True, correction=0),
    }
    result: Tensor = eval(text, {"__builtins__": {}}, {**functions, **names})
    return result


@daily(4)
@pytest.mark.parametrize("activation", ["silu", "relu", "relu2", "gelu_tanh", "sigmoid"])
@pytest.mark.parametrize("name", ["gpt2", "gemma2-2b", "llama-7b"])
def test_equations_of_norms_and_feed_forwards_give_what_the_modules_give(
    name: str, activation: str
) -> None:
    spec = small(
        name,
        n_layers=1,
        d_model=12,
        n_heads=2,
        n_kv_heads=2,
        head_dim=6,
        d_ff=20,
        vocab_size=30,
        activation=activation,
    )
    steps = every(reference_steps(build(spec), Workload(seq_len=5)))
    module = build(spec, device="cpu", dtype="fp64", seed=0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for path, part in module.named_modules():
        part.register_forward_hook(
            lambda _, args, out, path=path: seen.update({path: (args[0], out)})
        )
    module(torch.arange(5)[None])
    norms = [step for step in steps if step.module.endswith("Norm")]
    assert len(norms) >= 2
    for step in norms:
        part: Any = module.get_submodule(step.path)
        x, y = seen[step.path]
        names = {"x": x, "w": part.weight, "b": getattr(part, "bias", None), "eps": part.eps}
        torch.testing.assert_close(computed(step.equation or "", names), y)
    (hidden,) = [s for s in steps if (s.equation or "").startswith("hidden = ")]
    mlp = {
        path.rpartition(".")[2].removesuffix("_proj"): out
        for path, (_, out) in seen.items()
        if path.startswith(f"{hidden.path}.")
    }
    torch.testing.assert_close(
        computed(hidden.equation or "", mlp), seen[f"{hidden.path}.down_proj"][0]
    )


W = "(x − mean(x)) / √(var(x) + ε) · w"
PLAIN = nn.Linear(3, 4, bias=False)
# a module, its name in its holder, the operators that ran, and its equation
OF_TORCH: list[tuple[nn.Module, str, str, str | None]] = [
    *((PLAIN, "", product, "y = x·Wᵀ") for product in ("mm", "bmm", "mv")),
    *(
        (nn.Linear(3, 4), "", ran, "y = x·Wᵀ + b")
        for ran in ("addmm", "addmv", "mm add", "bmm add")
    ),
    *((nn.Linear(3, 4), "", ran, None) for ran in ("", "add", "mm mul", "addmm silu")),
    (PLAIN, "q_proj", "mm", "q = x·W_qᵀ"),
    (PLAIN, "kv_b_proj", "mm", "[k_n, v] = x·W_UKVᵀ"),
    (PLAIN, "lm_head", "mm", "logits = x·W_headᵀ"),
    (nn.Embedding(5, 3), "", "embedding", "y = row x of the table"),
    (nn.LayerNorm(3), "", "native_layer_norm", f"y = {W} + b"),
    (nn.LayerNorm(3, bias=False), "", "native_layer_norm", f"y = {W}"),
    (nn.LayerNorm(3), "", "native_layer_norm mul", None),
    (nn.Conv1d(3, 3, 2), "", "convolution", "y = x ∗ W + b"),
    (nn.Conv1d(3, 3, 2, bias=False), "", "convolution", "y = x ∗ W"),
    (nn.SiLU(), "", "silu", "y = silu(x)"),
]


@pytest.mark.parametrize(("module", "name", "ran", "equation"), OF_TORCH)
def test_equations_of_torchs_modules(
    module: nn.Module, name: str, ran: str, equation: str | None
) -> None:
    how: dict[str, Any] = {"holder": None, "gives": "", "inputs": ((2, 3),)}
    seen = Seen(module=module, name=name, operators=tuple(ran.split()), **how)
    assert of_torch(seen) == equation
