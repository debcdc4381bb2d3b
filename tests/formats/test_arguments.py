"""Arguments of Megatron-LM and nanoGPT, params.json of Meta and Mistral: the catalog's sizes.

Scripts are laid out as the examples of their projects are; nothing in them is run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import one_line
from helpers.command_line import refused, run_json

from metacount import catalog
from metacount.errors import InputError
from metacount.formats.megatron import options
from metacount.formulas.model import params
from metacount.resolve import Model, find_any, find_model, model_of
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


NANO = {"block_size": 1024, "vocab_size": 50257, "n_layer": 12, "n_head": 12, "n_embd": 768}
NANO |= {"dropout": 0.0, "bias": True}
# as karpathy/nanoGPT's config/train_shakespeare_char.py sets them
SHAKESPEARE = """# train a miniature character-level shakespeare model
out_dir = 'out-shakespeare-char'
eval_interval = 250 # keep frequent because we'll overfit
wandb_run_name = 'mini-gpt'
dataset = 'shakespeare_char'
batch_size = 64
block_size = 256 # context of up to 256 previous characters
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.2
learning_rate = 1e-3
"""

LLAMA_7B = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "vocab_size": -1}
LLAMA_7B |= {"norm_eps": 1e-6}
LLAMA2_7B = {**LLAMA_7B, "norm_eps": 1e-5}
LLAMA2_70B = {**LLAMA2_7B, "dim": 8192, "n_heads": 64, "n_layers": 80, "n_kv_heads": 8}
LLAMA2_70B |= {"multiple_of": 4096, "ffn_dim_multiplier": 1.3}
LLAMA3 = {**LLAMA2_7B, "n_kv_heads": 8, "vocab_size": 128256, "multiple_of": 1024}
LLAMA3 |= {"ffn_dim_multiplier": 1.3, "rope_theta": 500000.0}
LLAMA31_405B = {**LLAMA3, "dim": 16384, "n_heads": 128, "n_layers": 126, "multiple_of": 4096}
LLAMA31_405B |= {"ffn_dim_multiplier": 1.2, "use_scaled_rope": True}
MISTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32}
MISTRAL |= {"n_kv_heads": 8, "norm_eps": 1e-5, "vocab_size": 32000}
MOE = {**MISTRAL, "moe": {"num_experts_per_tok": 2, "num_experts": 8}}


def spec_of(folder: Path, text: str | dict[str, Any], name: str = "pretrain.sh") -> ModelSpec:
    """The spec of a script, of a config file of nanoGPT, or of JSON."""
    if isinstance(text, dict):
        return model_of(text).spec
    file = folder / name
    file.write_text(text)
    return find_model(str(file)).spec


def without(data: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


NANO_RUN = "init_from = {!r}\nbatch_size = 8\n"
# both routers weigh the chosen two alike; nanoGPT's GELU is the exact one
ALIKE: list[tuple[str | dict[str, Any], str, set[str]]] = [
    *(
        (text, name, set())
        for text, name in (
            (GPT3, "gpt3-175b"),
            (MT_NLG, "mt-nlg-530b"),
            (LLAMA3_8B, "llama3-8b"),
            (MIXTRAL, "mixtral-8x7b"),
            (QWEN3, "qwen3-0.6b"),
        )
    ),
    *((NANO_RUN.format(name), name, {"activation"}) for name in ("gpt2", "gpt2-xl")),
    (NANO, "gpt2", {"activation"}),
    (LLAMA_7B, "llama-7b", set()),
    (LLAMA2_70B, "llama2-70b", set()),
    (LLAMA3, "llama3-8b", set()),
    (LLAMA31_405B, "llama3.1-405b", set()),
    ({**MISTRAL, "sliding_window": 4096}, "mistral-7b", set()),
    (MOE, "mixtral-8x7b", {"router"}),
]


@pytest.mark.parametrize(("text", "name", "differ"), ALIKE)
def test_a_file_is_the_catalogs_model(
    tmp_path: Path, text: str | dict[str, Any], name: str, differ: set[str]
) -> None:
    file = "eval.py" if str(text).startswith("init_from") else "pretrain.sh"
    mine, theirs = spec_of(tmp_path, text, file), catalog.entry(name).spec()
    assert {k for k, v in mine.to_dict().items() if theirs.to_dict()[k] != v} == differ


SMALL = """--num-layers 3 --hidden-size 140 --num-attention-heads 5
--max-position-embeddings 37 --vocab-size 101"""
EXPERTS = LLAMA + " --num-experts 12 --moe-ffn-hidden-size 7 --moe-router-topk 4"
ROUTING = (
    " --moe-router-score-function sigmoid --moe-router-num-groups 6 --moe-router-group-topk 2"
    " --moe-router-enable-expert-bias --moe-router-topk-scaling-factor 2.5"
    " --moe-shared-expert-gate --moe-shared-expert-intermediate-size 11"
)
# what Megatron takes where nothing is said, and what its options say
FIELDS: list[tuple[str, dict[str, Any]]] = [
    (
        SMALL,
        {
            "vocab_size": 128,
            "d_ff": 560,
            "head_dim": 28,
            "activation": "gelu_tanh",
            "norm": "layernorm",
            "position": "learned",
            "tie_embeddings": True,
            "q_bias": True,
            "ffn_bias": True,
        },
    ),
    # 101 in multiples of 7·3 = 21: 105; two thirds of 4·140 = 373, in 64s: 320
    (
        SMALL + " --make-vocab-size-divisible-by 7 --swiglu --tensor-model-parallel-size 3"
        " --add-qkv-bias --disable-bias-linear",
        {
            "vocab_size": 105,
            "d_ff": 320,
            "gated": True,
            "q_bias": True,
            "o_bias": False,
            "ffn_bias": False,
        },
    ),
    (SMALL + " --no-bias-gelu-fusion", {"activation": "gelu"}),
    (SMALL + " --squared-relu", {"activation": "relu2"}),
    (SMALL + " --quick-geglu", {"swish_beta": 1.702}),  # x·sigmoid(1.702·x)
    (SMALL + " --padded-vocab-size 103", {"vocab_size": 103}),
    (SMALL + " --group-query-attention", {"n_kv_heads": 1}),  # --num-query-groups of 1
    (EXPERTS, {"d_ff": None}),
    (
        EXPERTS + " --moe-layer-freq ([0]*2+[1]*30)",
        {"n_dense_layers": 2, "d_ff": 11008, "d_ff_expert": 7},
    ),
    (
        EXPERTS + ROUTING,
        {
            "router": "sigmoid_renorm",
            "n_groups": 6,
            "top_groups": 2,
            "group_score": "top2_sum",
            "selection_bias": True,
            "routed_scale": 2.5,
            "d_ff_shared": 11,
            "shared_expert_gate": True,
        },
    ),
    (EXPERTS + " --moe-router-pre-softmax", {"router": "softmax"}),
    (
        LLAMA
        + " --rotary-percent 0.5 --rotary-interleaved --use-rope-scaling --apply-layernorm-1p",
        {
            "rotary_dim": 64,
            "rope_style": "interleaved",
            "norm_unit_offset": True,
            "rope_scaling": ("llama3", 8.0),
        },
    ),
    (LLAMA + " --rotary-seq-len-interpolation-factor 4", {"rope_scaling": ("linear", 4.0)}),
    (
        MT_NLG + " --position-embedding-type none --qk-layernorm",
        {"position": "none", "qk_norm": "layernorm"},
    ),
]


@pytest.mark.parametrize(("text", "fields"), FIELDS)
def test_what_the_options_of_megatron_mean(
    tmp_path: Path, text: str, fields: dict[str, Any]
) -> None:
    spec = spec_of(tmp_path, text)
    for name, value in fields.items():
        given = getattr(spec, name)
        assert ((given.kind, given.factor) if name == "rope_scaling" else given) == value, name


def test_experts_of_megatron_by_hand(tmp_path: Path) -> None:
    # a router 4,096·12, twelve experts of 3·4,096·7, beside attention and two norms
    layer = 4 * 4096**2 + 2 * 4096 + 12 * 4096 + 12 * 3 * 4096 * 7
    assert params(spec_of(tmp_path, EXPERTS)) == 2 * 32000 * 4096 + 32 * layer + 4096
    # layers 0, 4, 8, ..., as Megatron's own rule has it
    every = spec_of(tmp_path, EXPERTS + " --moe-layer-freq 4")
    assert [i for i in range(32) if every.is_moe_layer(i)] == list(range(0, 32, 4))


def test_a_config_file_of_nanogpt_is_read_as_data(tmp_path: Path) -> None:
    file = tmp_path / "train_shakespeare_char.py"
    file.write_text(SHAKESPEARE)
    model = find_model(str(file), ["vocab_size=65"])
    # 65·384 + 256·384; a layer 12·384² and two norm weights; a last norm; without any bias
    assert params(model.spec) == 65 * 384 + 256 * 384 + 6 * (12 * 384**2 + 2 * 384) + 384
    assert not model.spec.norm_bias
    assert "50304: train.py's own" in "\n".join(find_model(str(file)).notes)
    arithmetic = (
        '"""A run."""\nimport time\nn_head = 4\nn_embd = 16 * n_head - 4 // 3\n'
        "wandb_run_name = 'ft-' + str(time.time())\nbias = True\nn_embd = n_embd + 1\n"
    )
    spec = spec_of(tmp_path, arithmetic, "finetune.py")
    assert (spec.d_model, spec.n_heads, spec.q_bias) == (64, 4, True)
    spec = spec_of(tmp_path, "init_from = 'gpt2'\nblock_size = 512\n", "eval.py")
    assert spec.n_positions == 512


def test_what_a_params_json_takes_for_granted_is_said() -> None:
    notes = "\n".join(model_of(LLAMA2_7B).notes)
    assert "d_ff 11008 by its rule from dim, multiple_of and ffn_dim_multiplier" in notes
    assert "vocab_size -1 is the tokenizer's, 32000 pieces" in notes
    assert "does not say whether the head is tied" in notes
    notes = "\n".join(model_of({**MISTRAL, "sliding_window": 4096}).notes)
    assert "rope_theta is not given: 10000, as Mistral's code" in notes
    assert model_of({**MISTRAL, "rope_theta": 7e5}).spec.rope_theta == 7e5
    assert model_of({**MISTRAL, "tied_embeddings": True}).spec.tie_embeddings


WRONG: dict[str, list[tuple[Any, str]]] = {
    "pretrain.sh": [
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
    "config.py": [
        ("n_layers = 5", "n_layers"),
        ("n_layer = 5\nif True:\n    n_layer = 6\n", ""),
        ("n_layer, n_head = 5, 5", ""),
        ("n_layer = int('5')", "n_layer: "),
        ("n_embd = 9**9**9**9", "2000"),
        ("n_layer = 2.5", "n_layer"),
        ("bias = 1", "bias"),
        ("n_embd = 70", "n_head"),
        ("init_from = 'resume'", "init_from"),
        ("init_from = 'gpt2'\nn_layer = 24", "n_layer is 12 by init_from = gpt2: got 24"),
        ("import time\n", "train.py"),
        ("n_embd = " + "(" * 5000 + "1" + ")" * 5000, "is not Python"),
        ("#" * 300_000, "300000"),
        ("", "nanoGPT"),
        ("n_layer = 1\0", "has a NUL byte"),
    ],
    "params.json": [
        ({**LLAMA2_7B, "hidden_dim": 11008}, "hidden_dim"),
        (without(LLAMA2_7B, "multiple_of"), "multiple_of is missing"),
        (without(MISTRAL, "vocab_size"), "vocab_size is missing"),
        ({**LLAMA2_7B, "rope_theta": 1e6}, "vocab_size"),
        ({**LLAMA2_7B, "n_kv_heads": 5}, "n_kv_heads must divide n_heads: 32 % 5 = 2: got 5"),
        ({**LLAMA2_7B, "moe_args": {"num_experts": 16}}, "moe_args"),
        ({**MISTRAL, "vision_encoder": {"hidden_size": 1024}}, "vision_encoder is not a key"),
        (without(MISTRAL, "norm_eps"), "norm_eps is missing"),
        ({**MOE, "moe": {"num_experts": 8}}, "num_experts_per_tok is missing"),
        ({**MOE, "moe": {"num_experts": 8, "num_experts_per_tok": 9}}, "num_experts_per_tok"),
        ({**MOE, "moe": {**MOE["moe"], "num_shared_experts": 1}}, "num_shared_experts is"),
        ({**LLAMA2_7B, "dim": 4096.5}, "dim"),
        ({**LLAMA2_7B, "ffn_dim_multiplier": "1.3"}, "ffn_dim_multiplier"),
    ],
}


@pytest.mark.parametrize(
    ("name", "text", "message"), [(name, *row) for name, rows in WRONG.items() for row in rows]
)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str, text: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message) or None) as error:
        spec_of(tmp_path, text, name)
    one_line(error.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pretrain.sh", "touch {0}; $(touch {0}) `touch {0}`\n" + LLAMA),
        ("evil.py", "import os\nout_dir = open('{0}', 'w').write('x')\nn_layer = 2\n"),
    ],
)
def test_nothing_is_run(
    tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    touched = tmp_path / "was-run"
    assert spec_of(tmp_path, text.replace("{0}", str(touched)), name).n_layers in (2, 32)
    assert not touched.exists()
    assert "no such file" in refused(capsys, "count", str(tmp_path / f"gone-{name}"))


def test_a_value_may_begin_like_an_option() -> None:
    found = options("--load -x/y --lr -1e-4 --seed=3 -v", "here")
    assert found == {"--load": [["-x/y"]], "--lr": [["-1e-4"]], "--seed": [["3"]], "-v": [[]]}


def test_files_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, args = tmp_path / "args.json", tmp_path / "llama.args"
    args.write_text(LLAMA.replace(" ", "=").replace("\n", " ").replace("=--", " --"))
    assert run_json(capsys, "count", str(args))["params"] == 6_738_415_616
    file.write_text(json.dumps(NANO))
    assert run_json(capsys, "count", str(file))["params"] == 124_439_808
    for wrong, message in (
        ({"rope": True}, "args.json: rope is not an argument of nanoGPT"),
        ({"n_head": 0}, "n_head"),
        ({"vocab_size": 10**12}, "vocab_size"),
    ):
        file.write_text(json.dumps({**NANO, **wrong}))
        assert message in refused(capsys, "count", str(file))


def test_a_folder_with_a_params_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "Llama-2-7b"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(LLAMA2_7B))
    data = run_json(capsys, "count", str(folder))
    assert data["params"] == 6_738_415_616  # Llama 2 7B: 2·32,000·4,096 + 32·202,383,360 + 4,096
    model = find_any(str(folder))
    assert isinstance(model, Model)
    assert (model.name, model.source is not None) == ("Llama-2-7b", True)
    # transformers' own file goes first
    (folder / "config.json").write_text("{")
    assert "config.json: is not JSON" in refused(capsys, "count", str(folder))
