"""Textbook against code for all sizes: proven where equal, refuted where any term is off."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import sympy
from helpers.release import one_in

from metacount.catalog import entry
from metacount.formulas import block, pieces
from metacount.formulas.tape import Tape, Tensor
from metacount.spec import Workload
from metacount.textbook.count import fitted
from metacount.tracing.forms import CodeForm, Tracer
from metacount.tracing.sources import As
from metacount.tracing.symbols import divides, symbol
from metacount.verify.for_all_sizes import (
    PROVEN,
    Proof,
    _routed_as_meant,
    differences,
    prove,
    textbook_forms,
)
from metacount.verify.textbook_forms import textbook_of

RUN = Workload(seq_len=64)
CAUSAL = "causal_matmul_flops"
# few layers are traced sooner; how many there are is a letter
TYPES = {
    "llama": {"num_hidden_layers": 4},
    "mixtral": {"num_hidden_layers": 4},
    "t5": {"num_layers": 4, "num_decoder_layers": 5},
}


def config_of(model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **TYPES[model_type]}


@cache
def both(model_type: str) -> tuple[dict[str, dict[str, Any]], dict[str, CodeForm]]:
    config = config_of(model_type)
    tracer = Tracer(config, RUN)
    return textbook_forms(config, RUN)[1], {name: tracer.form(name) for name in PROVEN}


@pytest.mark.parametrize("model_type", one_in(3, TYPES))
def test_the_textbook_is_what_the_code_does(model_type: str) -> None:
    textbook, code = both(model_type)
    for quantity in PROVEN:
        assert differences(textbook[quantity], code[quantity]) == {}, quantity


@pytest.mark.parametrize("quantity", PROVEN)
@pytest.mark.parametrize("model_type", one_in(3, TYPES))
def test_a_formula_with_any_term_changed_is_refuted(model_type: str, quantity: str) -> None:
    textbook, code = both(model_type)
    tried = 0
    for role, form in textbook[quantity].items():
        for term in sympy.expand(sympy.sympify(form)).as_ordered_terms():
            if term == 0:
                continue
            tried += 1
            for wrong in (form - term, form + term, form + 1):
                changed = {**textbook[quantity], role: wrong}
                assert set(differences(changed, code[quantity])) == {role}
    assert tried >= 1


MAMBA2 = {
    "model_type": "mamba2",
    **{"num_hidden_layers": 2, "hidden_size": 32, "num_heads": 4, "head_dim": 16, "expand": 2},
    **{"state_size": 8, "n_groups": 2, "chunk_size": 16, "vocab_size": 50},
}


def test_a_size_that_others_imply_is_no_letter_of_a_proof() -> None:
    """Heads fill expand·hidden_size channels: the domain says that expand is a whole number."""
    (found,) = prove(MAMBA2, RUN, As(), ("params",))
    assert found.proven
    d, h, p = map(symbol, ("d_model", "n_ssm_heads", "ssm_head_dim"))
    assert found.domain == (divides(d, h * p),)


def test_a_size_that_others_imply_is_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    from metacount.verify import textbook_forms

    wrong = (("expand", ("num_heads", "state_size"), "hidden_size"),)
    monkeypatch.setattr(textbook_forms, "FOLLOWS", wrong)
    (found,) = prove(MAMBA2, RUN, As(), ("params",))
    assert found.differences


OF_ALL = Proof(quantity="matmul_flops", differences={}, form=None)
IDLE = Proof(quantity="matmul_flops", differences={}, form=None, idle=symbol("n_experts"))
WRONG = Proof(quantity="matmul_flops", differences={"moe": symbol("d_model")}, form=None)
NOT_SHOWN = Proof(quantity="matmul_flops", differences={}, form=None, problem="too slow")


def test_what_code_does_besides_is_written_in_letters() -> None:
    """Llama 4's, in transformers, runs each token through each expert, chosen or not."""
    config = {"model_type": "llama4_text", "num_hidden_layers": 4}
    (flops,) = prove(config, RUN, As(), ("matmul_flops",))
    B, S, N, d, m_e, E = map(symbol, ("B", "S", "n_layers", "d_model", "d_ff_expert", "n_experts"))
    assert flops.of_chosen
    assert sympy.expand(flops.idle - 6 * B * S * N * d * m_e * (E - 1)) == 0  # k is 1


@pytest.mark.parametrize(
    ("flops", "said"),
    [
        (OF_ALL, ""),
        (NOT_SHOWN, ""),
        (IDLE, "; the code runs every token through experts that it did not choose: see matmul_"),
        (WRONG, "; the FLOPs of the code are those of another number of experts per token: see m"),
    ],
)
def test_active_parameters_are_the_code_s_where_its_flops_are(flops: Proof, said: str) -> None:
    active = Proof(quantity="active_params", differences={}, form=None)
    found = {"active_params": active, "matmul_flops": flops}
    nothing: Any = None  # neither textbook nor tracer is asked again
    told = _routed_as_meant(found, nothing, nothing, RUN)
    assert told.proven is not bool(said)
    assert said in told.problem
    wrong = Proof(quantity="active_params", differences={"moe": symbol("d_model")}, form=None)
    assert _routed_as_meant({**found, "active_params": wrong}, nothing, nothing, RUN) == wrong


def test_a_wrong_textbook_is_named_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    code, right = both("llama")[1], block.run_feed_forward

    def with_one_more(t: Tape, *given: Any) -> Tensor:
        t.weight("mlp.one_more", 1, role="ffn")
        return right(t, *given)

    monkeypatch.setattr(pieces, "_recorded", {})  # what was recorded without the error
    monkeypatch.setattr(block, "run_feed_forward", with_one_more)
    wrong = textbook_forms(config_of("llama"), RUN)[1]
    # one more in each layer, for every token
    for quantity in ("params", "active_params"):
        found = differences(wrong[quantity], code[quantity])
        assert found == {"ffn": symbol("num_hidden_layers")}
    assert differences(wrong["kv_cache_bytes"], code["kv_cache_bytes"]) == {}


@pytest.mark.parametrize("model", one_in(3, ["llama-7b", "mixtral-8x7b", "bert-base"]))
def test_the_textbook_is_what_our_modules_do(model: str) -> None:
    spec = entry(model).spec().replace(n_layers=2)
    proofs = {proof.quantity: proof for proof in prove(spec, fitted(spec, RUN))}
    decodes = {"decode_matmul_flops", "kv_cache_bytes"} if spec.kind == "decoder" else set()
    assert proofs.keys() == {"params", "active_params", "matmul_flops", CAUSAL} | decodes
    assert all(proof.proven for proof in proofs.values())
    if model != "llama-7b":
        return
    code = proofs[CAUSAL].form
    assert code is not None
    letters = ("d_model", "n_layers", "vocab_size", "d_ff", "n_heads", "n_kv_heads", "head_dim")
    right = textbook_of(spec, letters, RUN).forms[CAUSAL]
    assert differences(right, code) == {}
    # half of all pairs, as is often said: short by S/2 pairs on the diagonal
    B, S, N, h, a = map(symbol, ("B", "S", "n_layers", "n_heads", "head_dim"))
    halved = {**right, "attention": right["attention"] - 2 * B * S * N * h * a}
    assert differences(halved, code) == {"attention": -2 * B * S * N * h * a}
