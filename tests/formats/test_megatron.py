"""Megatron-LM's arguments, in scripts laid out as its examples are, against the catalog's sizes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.command_line import refused, run_json

from metacount import catalog
from metacount.errors import InputError
from metacount.formats.megatron import options
from metacount.formulas.model import params
from metacount.resolve import find_model
from metacount.spec import ModelSpec

GPT3 = """#!/bin/bash

# Runs the "175B" parameter model
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>

GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # Can use (flash/fused/unfused/local)
    --vocab-size 50257
    --make-vocab-size-divisible-by 1
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --step-batch-size-schedule "0:16 2.4B:320 4.8B:624"
    --lr 6.0e-5
)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING_ARGS+=(
        --wandb-project ${WANDB_PROJECT:-"GPT"}
    )
fi
torchrun pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} --tensorboard-dir "${CHECKPOINT_PATH}/tensorboard"
"""
# Names of Narayanan et al. 2021's successor: 530B with 8-way tensor parallelism.
MT_NLG = """--num-layers 105 --hidden-size 20480 --num-attention-heads 128
--max-position-embeddings 2048 --vocab-size 50257 --tensor-model-parallel-size 8"""
LLAMA = """--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008
--max-position-embeddings 4096 --position-embedding-type rope --swiglu --normalization RMSNorm
--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000"""
LLAMA3_8B = LLAMA.replace("11008", "14336").replace("32000", "128256") + (
    " --group-query-attention --num-query-groups 8 --rotary-base 500000"
)
MIXTRAL = (
    LLAMA.replace("11008", "14336")
    + """ --group-query-attention --num-query-groups 8
--no-position-embedding --rotary-base 1000000 --num-experts 8 --moe-router-topk 2
--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm"""
)
# as the examples of Megatron-LM have it: one text in quotes, padded to 1187·128 rows
QWEN3 = """MODEL_ARGS=" \\
    --bf16 --no-masked-softmax-fusion --disable-bias-linear --position-embedding-type rope \\
    --no-rope-fusion --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --num-layers 28 \\
    --hidden-size 1024 --ffn-hidden-size 3072 --num-attention-heads 16 \\
    --group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm \\
    --seq-length 4096 --max-position-embeddings 40960 --vocab-size 151936 \\
    --make-vocab-size-divisible-by 1187 --rotary-percent 1.0 --rotary-base 1000000 \\
"
"""


def read(folder: Path, text: str) -> ModelSpec:
    file = folder / "pretrain.sh"
    file.write_text(text)
    return find_model(str(file)).spec


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (GPT3, "gpt3-175b"),
        (MT_NLG, "mt-nlg-530b"),
        (LLAMA3_8B, "llama3-8b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN3, "qwen3-0.6b"),
    ],
)
def test_a_script_is_the_catalogs_model(tmp_path: Path, text: str, name: str) -> None:
    assert read(tmp_path, text) == catalog.entry(name).spec()


def test_what_megatron_takes_where_nothing_is_said(tmp_path: Path) -> None:
    small = """--num-layers 3 --hidden-size 130 --num-attention-heads 5
    --max-position-embeddings 37 --vocab-size 101"""
    spec = read(tmp_path, small)
    assert (spec.vocab_size, spec.d_ff, spec.head_dim) == (128, 520, 26)
    assert (spec.activation, spec.norm, spec.position) == ("gelu_tanh", "layernorm", "learned")
    assert spec.tie_embeddings
    assert spec.q_bias
    assert spec.ffn_bias
    # 101 in multiples of 7·3 = 21: 105; two thirds of 4·130 = 346, in 64s: 320
    other = read(
        tmp_path,
        small + " --make-vocab-size-divisible-by 7 --swiglu "
        "--tensor-model-parallel-size 3 --add-qkv-bias --disable-bias-linear",
    )
    assert (other.vocab_size, other.d_ff, other.gated) == (105, 320, True)
    assert (other.q_bias, other.o_bias, other.ffn_bias) == (True, False, False)
    assert read(tmp_path, small + " --no-bias-gelu-fusion").activation == "gelu"
    assert read(tmp_path, small + " --squared-relu").activation == "relu2"
    assert read(tmp_path, small + " --quick-geglu").swish_beta == 1.702  # x·sigmoid(1.702·x)
    assert read(tmp_path, small + " --padded-vocab-size 103").vocab_size == 103
    grouped = read(tmp_path, small + " --group-query-attention")
    assert grouped.n_kv_heads == 1  # --num-query-groups of 1


def test_experts_in_some_layers(tmp_path: Path) -> None:
    moe = LLAMA + " --num-experts 12 --moe-ffn-hidden-size 7 --moe-router-topk 4 "
    spec = read(tmp_path, moe + "--moe-layer-freq ([0]*2+[1]*30)")
    assert (spec.n_dense_layers, spec.d_ff, spec.d_ff_expert) == (2, 11008, 7)
    every = read(tmp_path, moe + "--moe-layer-freq 4")
    # layers 0, 4, 8, ..., as Megatron's own rule has it
    assert [i for i in range(32) if every.is_moe_layer(i)] == list(range(0, 32, 4))
    assert read(tmp_path, moe).d_ff is None
    routed = read(
        tmp_path,
        moe + "--moe-router-score-function sigmoid --moe-router-num-groups 6 "
        "--moe-router-group-topk 2 --moe-router-enable-expert-bias "
        "--moe-router-topk-scaling-factor 2.5 --moe-shared-expert-gate "
        "--moe-shared-expert-intermediate-size 11",
    )
    assert (routed.router, routed.n_groups, routed.top_groups) == ("sigmoid_renorm", 6, 2)
    assert (routed.group_score, routed.selection_bias) == ("top2_sum", True)
    assert (routed.routed_scale, routed.d_ff_shared, routed.shared_expert_gate) == (2.5, 11, True)
    assert read(tmp_path, moe + "--moe-router-pre-softmax").router == "softmax"
    # by hand: a router 4,096·12, twelve experts of 3·4,096·7, beside attention and two norms
    layer = 4 * 4096**2 + 2 * 4096 + 12 * 4096 + 12 * 3 * 4096 * 7
    assert params(read(tmp_path, moe)) == 2 * 32000 * 4096 + 32 * layer + 4096


def test_rope_and_norms_of_other_kinds(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        LLAMA + " --rotary-percent 0.5 --rotary-interleaved --use-rope-scaling "
        "--apply-layernorm-1p",
    )
    assert (spec.rotary_dim, spec.rope_style, spec.norm_unit_offset) == (64, "interleaved", True)
    assert (spec.rope_scaling.kind, spec.rope_scaling.factor) == ("llama3", 8.0)
    longer = read(tmp_path, LLAMA + " --rotary-seq-len-interpolation-factor 4")
    assert (longer.rope_scaling.kind, longer.rope_scaling.factor) == ("linear", 4.0)
    plain = read(tmp_path, MT_NLG + " --position-embedding-type none --qk-layernorm")
    assert (plain.position, plain.qk_norm) == ("none", "layernorm")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LLAMA + " --window-size (127,0)", "--window-size"),
        (LLAMA + " --mtp-num-layers 1", "--mtp-num-layers"),
        (LLAMA + " --num-layer 3", "did you mean --num-layers"),
        (LLAMA.replace("32000", ""), "--vocab-size needs a value"),
        (LLAMA.replace("--num-layers 32", ""), "--num-layers is missing"),
        (LLAMA.replace("32000", "$VOCAB"), "--vocab-size"),
        ("N=3\nN=4\n" + LLAMA.replace("layers 32", "layers $N"), "--num-layers must be written"),
        (LLAMA + " --num-query-groups 8", "--num-query-groups"),
        (LLAMA + " --group-query-attention --num-query-groups 5", "--num-query-groups"),
        (LLAMA + " --moe-router-topk 2", "--moe-router-topk"),
        (MT_NLG + " --num-experts 4", "--num-experts"),
        (MIXTRAL + " --moe-layer-freq ([0]*1+[1]*30)", "--moe-layer-freq must name 32 layers"),
        (LLAMA.replace("type rope", "type yarn"), "--position-embedding-type has a value that"),
        (LLAMA + " --rotary-percent 0.001", "--rotary-percent leaves 0 of 128"),
        (LLAMA.replace("4096 --num", "4097 --num"), "--num-attention-heads"),
        (LLAMA.replace("heads 32", "heads " + "9" * 50), "--num-attention-heads must be a whole"),
        ("echo hello", "has none of --num-layers, --hidden-size"),
        ("ARGS='--num-layers 3", "no closing quotation"),
        ("x " * 200_000, "has 400000 characters"),
        ("", ""),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message) or None) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "was-run"
    assert read(tmp_path, f"touch {told}; $(touch {told}) `touch {told}`\n{LLAMA}").d_ff == 11008
    assert not told.exists()
    assert "no such file" in refused(capsys, "count", str(tmp_path / "gone.sh"))


def test_a_file_of_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "llama.args"
    file.write_text(LLAMA.replace(" ", "=").replace("\n", " ").replace("=--", " --"))
    assert run_json(capsys, "count", str(file))["params"] == 6_738_415_616


def test_a_value_may_begin_like_an_option() -> None:
    assert options("--load -x/y --lr -1e-4 --seed=3 -v", "here") == {
        "--load": [["-x/y"]],
        "--lr": [["-1e-4"]],
        "--seed": [["3"]],
        "-v": [[]],
    }
