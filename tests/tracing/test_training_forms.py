"""Closed forms of a training step read off code, and the formulas beside them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import sympy
from helpers.miniatures import miniature
from helpers.release import one_in

from metacount.catalog import entry
from metacount.cli import main
from metacount.modules.build import build
from metacount.spec import ModelSpec, Workload
from metacount.summary.training_step import train
from metacount.textbook.training import TRAINING
from metacount.tracing.forms import Tracer
from metacount.tracing.layers import Place, Stack, levelled
from metacount.tracing.reference import ReferenceSource
from metacount.training.setup import OF_A_STEP, setup_of
from metacount.verify import for_all_sizes
from metacount.verify.for_all_sizes import Proof, differences, prove
from metacount.verify.textbook_forms import textbook_of

RUN = Workload(batch_size=2, seq_len=11)
B, S, d, N, V, m, h, g, a = sympy.symbols(
    "B S d_model n_layers vocab_size d_ff n_heads n_kv_heads head_dim", integer=True, positive=True
)


@cache
def small(name: str) -> ModelSpec:
    """A model of the catalog at small sizes, of one layer."""
    spec = miniature(entry(name).spec())
    return spec.replace(n_layers=1, n_dense_layers=0, d_ff=None if spec.is_moe else 17)


@cache
def proof(name: str, quantity: str) -> Proof:
    (found,) = prove(small(name), RUN, quantities=(quantity,))
    return found


def test_kept_bytes_by_hand() -> None:
    form = proof("llama-7b", "activation_bytes").form
    assert form is not None
    expected = {
        # the numbers of the tokens
        "embedding": 8 * B * S,
        # two norms of a layer and the last: the input in 16 and 32 bits, the root of each token
        "norm": (2 * N + 1) * (8 * B * S * d + 4 * B * S),
        # the softmax in 32 and 16 bits and the mask; the input; q, k, v by heads; cos and sin
        "attention": N * (6 * B * S**2 * h + S**2 + 2 * B * S * d + 8 * B * S * h * a + 8 * S * a),
        # the input; gate, its activation, up, and the product of both
        "ffn": N * (2 * B * S * d + 8 * B * S * m),
        "head": 2 * B * S * d,
        # the logarithms of the probabilities in 32 bits, the targets, their number
        "other": 4 * B * S * V + 8 * B * S + 4,
    }
    assert form.by_role.keys() == expected.keys()
    for role, expr in expected.items():
        assert sympy.expand(form.by_role[role] - expr) == 0, role
    assert form.how == "traced"
    assert form.confirmed >= 3


# dense, gated, experts, latent attention; eager and fused; all, and the inputs of layers alone
@pytest.mark.parametrize(
    ("name", "quantity"),
    one_in(
        2,
        [
            ("llama-7b", "activation_bytes"),
            ("gpt2", "activation_bytes"),
            ("llama-7b", "backward_matmul_flops:flash"),
            ("deepseek-v3", "activation_bytes"),
            ("mixtral-8x7b", "activation_bytes:flash"),
            ("gpt2", "optimizer_bytes:adafactor"),
        ],
    ),
)
def test_a_formula_is_what_the_code_does(name: str, quantity: str) -> None:
    found = proof(name, quantity)
    assert (found.problem, found.differences) == ("", {})
    assert found.proven


def test_a_wrong_formula_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    form = proof("llama-7b", "activation_bytes").form
    assert form is not None
    monkeypatch.setattr(Tracer, "form", lambda *_: form)
    right = TRAINING["activation_bytes"]

    def wrong(spec: ModelSpec, run: dict[str, Any]) -> dict[str, Any]:
        found = right(spec, run)
        return {
            **found,
            "ffn": found["ffn"] - 2 * run["batch_size"] * run["seq_len"] * spec.d_model,
        }

    monkeypatch.setitem(TRAINING, "activation_bytes", wrong)
    (found,) = for_all_sizes.prove(small("llama-7b"), RUN, quantities=("activation_bytes",))
    assert found.differences == {"total": -2 * B * S * d}
    assert not found.proven


def test_every_term_of_a_formula_counts() -> None:
    form = proof("llama-7b", "activation_bytes").form
    assert form is not None
    letters = ("d_model", "n_layers", "vocab_size", "d_ff", "n_heads", "n_kv_heads", "head_dim")
    textbook = textbook_of(small("llama-7b"), letters, RUN, ("activation_bytes",))
    by_role = textbook.forms["activation_bytes"]
    assert differences(by_role, form, together=True) == {}
    for role, expr in by_role.items():
        for term in sympy.Add.make_args(sympy.expand(expr)):
            if term != 0:
                wrong = {**by_role, role: expr + term}
                assert differences(wrong, form, together=True) != {}, (role, term)


def test_what_has_no_formula_is_said() -> None:
    spec = small("bloom-176b").replace(window=4, window_pattern="LG", n_layers=2)
    (found,) = prove(spec, RUN, quantities=("activation_bytes",))
    assert found.problem.startswith("no formula: window_pattern has no formula for training")
    assert not found.proven


@pytest.mark.parametrize("quantity", ["activation_bytes:flash:full", "recompute_matmul_flops"])
def test_one_ruler(quantity: str) -> None:
    """What forms are held against is what `train` measures."""
    spec, setup = small("mixtral-8x7b"), setup_of(quantity)
    assert setup is not None
    source = ReferenceSource(spec, "bf16", 0)
    found = source.measured(build(spec, dtype="bf16"), quantity, RUN, False)
    told = train(spec, RUN, setup).to_dict()
    assert found == told[f"{quantity.partition(':')[0]}_by_role"]


def test_a_table_that_layers_share_is_outside_of_them() -> None:
    stack = Stack(path="layers", length=4)
    at = [Place(stack=stack, index=i) for i in range(4)]
    x, y, table = sympy.symbols("x y table")
    kept = {("norm", at[0]): x + table, ("norm", at[1]): x, ("norm", at[2]): x, ("ffn", at[3]): y}
    found = levelled(kept, {"layers": ("a", "a", "a", "b")})
    assert found == {
        ("norm", None): table,
        ("ffn", None): 0,
        **{("norm", at[i]): x for i in range(3)},
        ("ffn", at[3]): y,
    }
    assert levelled(kept, {}) == kept


LLAMA = {
    "model_type": "llama",
    "hidden_size": 12,
    "intermediate_size": 17,
    "num_hidden_layers": 2,  # of one alone nobody sees what layers share
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 101,
    "max_position_embeddings": 64,
}


def test_other_code_is_read_as_well(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    ask = ["--quantity", "activation_bytes:flash", "--by", "operator", "--seq", "11", "--json"]
    assert main(["formula", str(path), "--from-code", *ask]) == 0
    form = json.loads(capsys.readouterr().out)
    assert (form["quantity"], form["split"]) == ("activation_bytes:flash", "operator")
    assert "head_dim ≤ 256" in form["domain"]
    # queries, keys and values, what comes out, the logarithm of each sum in 32 bits, two seeds
    kernel = form["parts"]["ScaledDotProductFlashAttentionBackward0"]["python"]
    numbers = dict(form["numbers"])
    assert eval(kernel, numbers) == 2 * (2 * 11 * 4 * (6 + 2 + 2 + 6) + 4 * 11 * 6 + 24)
    assert sum(eval(part["python"], numbers) for part in form["parts"].values()) == form["total"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("activation_bytes:flsh",), "activation_bytes"),
        (("gradient_bytes:flash",), "gradient_bytes"),
        (("optimizer_bytes:adam8bit",), "`train --optimizer adam8bit` measures it"),
        (("activation_bytes:flash", "--dtype", "fp32"), ""),
        (("activation_bytes", "--dtype", "fp8"), "dtype"),
        (("gradient_bytes", "--by", "operator"), "gradient_bytes"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("--set", "n_layers=1", "--set", "vocab_size=101", "--seq", "8")
    assert main(["formula", "llama-7b", *sizes, "--from-code", "--quantity", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_verify_asks_for_quantities_of_a_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def told(*given: Any) -> tuple[Proof, ...]:
        asked.append(given)
        return (proof("llama-7b", "activation_bytes"),)

    monkeypatch.setattr(for_all_sizes, "prove", told)
    sizes = ("--set", "n_layers=1", "--set", "vocab_size=101", "--seq", "8")
    quantity = ("--quantity", "activation_bytes")
    assert main(["verify", "llama-7b", *sizes, "--all-sizes", *quantity]) == 0
    assert "activation_bytes  0: equal" in capsys.readouterr().out
    runs = [(run.batch_size, run_as.one_sequence) for _, run, run_as, _ in asked]  # type: ignore[attr-defined]
    assert (2, False) in runs
    assert (1, True) in runs
    assert main(["verify", "llama-7b", *quantity]) == 2
    assert "--quantity belongs to --all-sizes" in capsys.readouterr().err
    assert main(["verify", "llama-7b", "--all-sizes", "--quantity", "params"]) == 2
    assert "--quantity 'params' is unknown" in capsys.readouterr().err


def test_the_names_of_formulas_are_names_of_steps() -> None:
    assert {name.partition(":")[0] for name in TRAINING} == OF_A_STEP.keys()
    assert all(setup_of(name) is not None for name in TRAINING)
