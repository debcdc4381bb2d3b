"""Megatron-LM's arguments in a script or a file of them, as its pretrain_gpt.py understands them.

What sizes the model is read; what only runs or trains it is passed over; any other is an error.
"""

from __future__ import annotations

import re

from metacount.errors import InputError, SpecError, nearest, shown
from metacount.formats import Described, spec_of
from metacount.huggingface.config.keys import Keys, words
from metacount.huggingface.config.parts import biases, divided, moe_layout, placed
from metacount.spec.position import RopeScaling

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from metacount.files import Json


# Arguments with one value that size the model, and what Megatron takes where they are not given.
VALUES: Json = {
    **dict.fromkeys(
        words(
            "--num-layers --hidden-size --num-attention-heads --max-position-embeddings "
            "--vocab-size --padded-vocab-size --ffn-hidden-size --kv-channels --num-experts "
            "--rotary-seq-len-interpolation-factor --moe-ffn-hidden-size --moe-router-num-groups "
            "--moe-shared-expert-intermediate-size --moe-router-topk-scaling-factor "
            "--moe-router-group-topk"
        )
    ),
    "--num-query-groups": 1,
    "--make-vocab-size-divisible-by": 128,
    "--tensor-model-parallel-size": 1,
    "--position-embedding-type": "learned_absolute",
    "--rotary-base": 10000,
    "--rotary-percent": 1.0,
    "--rope-scaling-factor": 8.0,
    "--normalization": "LayerNorm",
    "--norm-epsilon": 1e-5,
    "--moe-router-topk": 2,
    "--moe-layer-freq": 1,
    "--moe-router-score-function": "softmax",
}
FLAGS = words(
    "--group-query-attention --use-rotary-position-embeddings --no-position-embedding "
    "--use-rope-scaling --swiglu --squared-relu --quick-geglu --openai-gelu "
    "--no-bias-gelu-fusion --disable-bias-linear --add-qkv-bias --qk-layernorm "
    "--untie-embeddings-and-output-weights --apply-layernorm-1p --rotary-interleaved "
    "--moe-router-pre-softmax --moe-router-enable-expert-bias --moe-shared-expert-gate"
)
# Other names of the same.
ALIASES = {"--layernorm-epsilon": "--norm-epsilon"}
NEEDED = ("--num-layers", "--hidden-size", "--num-attention-heads", "--max-position-embeddings")
# What a spec calls them.
NAMES = {
    "d_model": "--hidden-size",
    "n_layers": "--num-layers",
    "n_heads": "--num-attention-heads",
    "n_kv_heads": "--num-query-groups",
    "head_dim": "--kv-channels",
    "d_ff": "--ffn-hidden-size",
    "vocab_size": "--vocab-size",
    "n_positions": "--max-position-embeddings",
    "n_experts": "--num-experts",
    "top_k": "--moe-router-topk",
    "d_ff_expert": "--moe-ffn-hidden-size",
    "n_groups": "--moe-router-num-groups",
    "top_groups": "--moe-router-group-topk",
    "rotary_dim": "--rotary-percent",
}

# Arguments that run, train, store or report, and leave the model as it is: whole families of them,
# by how they begin, and others.
RUN_FAMILIES = tuple(
    words(
        "--lr- --adam- --log- --tensorboard- --wandb- --save- --load- --eval- --train- --ckpt- "
        "--dist-ckpt- --recompute- --overlap- --no-overlap- --tp-comm- --fp8- --fp4- --ddp- "
        "--profile- --exit- --manual-gc --num-dataset- --distributed- --ft- --inprocess- "
        "--one-logger- --muon- --master- --rdzv- --nproc- --non-persistent- --cuda-graph- "
        "--logging- --tokenizer- --megatron-fsdp- --straggler- --otel-"
    )
)
RUN = words(
    # torchrun
    "nnodes node-rank max-restarts module standalone "
    # batches, data, words
    "micro-batch-size global-batch-size rampup-batch-size step-batch-size-schedule seq-length "
    "decoder-seq-length data-path split data-cache-path data-args-path per-split-data-args-path "
    "valid-data-path test-data-path mock-data vocab-file merge-file tiktoken-pattern "
    "tiktoken-num-special-tokens special-tokens null-tokenizer-eod-id reset-position-ids "
    "reset-attention-mask eod-mask-loss no-create-attention-mask-in-dataloader no-mmap-bin-files "
    "num-workers dataloader-type dataloader-fast-cache-load mid-level-dataset-surplus sft "
    # steps
    "lr min-lr decoupled-lr decoupled-min-lr weight-decay start-weight-decay end-weight-decay "
    "weight-decay-incr-style clip-grad optimizer sgd-momentum seed init-method-std "
    "embedding-init-method-std init-method-xavier-uniform use-cpu-initialization "
    "attention-dropout hidden-dropout loss-scale initial-loss-scale min-loss-scale "
    "loss-scale-window hysteresis calculate-per-token-loss cross-entropy-loss-fusion "
    "cross-entropy-fusion-impl skip-train finetune override-opt-param-scheduler "
    "override-opt_param-scheduler use-checkpoint-opt-param-scheduler "
    "no-check-for-nan-in-loss-and-grad check-for-nan-in-loss-and-grad check-for-spiky-loss "
    "check-for-large-grads rerun-mode moe-aux-loss-coeff moe-z-loss-coeff "
    "moe-router-load-balancing-type moe-router-bias-update-rate moe-input-jitter-eps "
    "moe-router-force-load-balancing "
    # numbers and kernels
    "fp16 bf16 fp8 fp32-residual-connection attention-softmax-in-fp32 grad-reduce-in-bf16 "
    "accumulate-allreduce-grads-in-fp32 main-grads-dtype main-params-dtype exp-avg-dtype "
    "exp-avg-sq-dtype use-precision-aware-optimizer moe-router-dtype use-mcore-models "
    "use-legacy-models transformer-impl attention-backend use-flash-attn no-masked-softmax-fusion "
    "no-bias-swiglu-fusion no-bias-dropout-fusion no-rope-fusion no-persist-layer-norm "
    "no-gradient-accumulation-fusion apply-query-key-layer-scaling "
    "no-query-key-layer-scaling moe-grouped-gemm moe-permute-fusion moe-router-fusion "
    "moe-token-dispatcher-type moe-enable-deepep moe-flex-dispatcher-backend "
    "moe-shared-expert-overlap moe-layer-recompute moe-per-layer-logging "
    "enable-experimental deterministic-mode te-rng-tracker use-te-rng-tracker "
    "disable-jit-fuser init-model-with-meta-device trust-remote-code "
    # machines
    "pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage "
    "num-virtual-stages-per-pipeline-rank microbatch-group-size-per-virtual-pipeline-stage "
    "virtual-pipeline-model-parallel-size context-parallel-size cp-comm-type "
    "expert-model-parallel-size expert-tensor-parallel-size sequence-parallel "
    "use-distributed-optimizer num-distributed-optimizer-instances data-parallel-sharding-strategy "
    "use-megatron-fsdp use-torch-fsdp2 use-custom-fsdp use-tp-pp-dp-mapping use-nccl-ub "
    "nccl-communicator-config-path account-for-embedding-in-pipeline-split "
    "account-for-loss-in-pipeline-split decoder-first-pipeline-num-layers "
    "decoder-last-pipeline-num-layers defer-embedding-wgrad-compute wgrad-deferral-limit "
    "delay-wgrad-compute align-grad-reduce no-align-param-gather optimizer-cpu-offload "
    "optimizer-offload-fraction empty-unused-memory-level local-rank lazy-mpu-init "
    # what is kept and told
    "save load use-dist-ckpt async-save auto-detect-ckpt-format exit-on-missing-checkpoint "
    "no-load-optim no-load-rng no-save-optim no-save-rng timing-log-level timing-log-option "
    "profile use-pytorch-profiler record-memory-history memory-snapshot-path "
    "check-weight-hash-across-dp-replicas-interval"
)


def described(path: str) -> Described:
    """Read the model of a script, or of a file of arguments."""
    import re

    from metacount.files import read_text

    where = shown(path)
    text = read_text(path, "a script with Megatron-LM's arguments")
    other = re.search(r"\b(?:pre)?train_(?!gpt\b)\w+\.py\b", text)
    if other:
        fault = f"runs {shown(other[0])}, whose model is another"
        raise InputError(f"{where}: {fault}; those of pretrain_gpt.py are read")
    given = options(text, where)
    if not given.keys() & set(NEEDED):
        remedy = "give a script with Megatron-LM's arguments"
        raise InputError(f"{where}: has none of {', '.join(NEEDED)}; {remedy}")
    data = values_of(given, where)
    for name in NEEDED:
        if name not in data:
            raise SpecError(name, "is missing", None, f"give {name}")
    return _described(Keys(data, {**VALUES, **dict.fromkeys(FLAGS, False)}, {}, "head"))


def _described(keys: Keys) -> Described:
    notes = ["Megatron-LM's arguments: read, nothing is run"]
    d_model, n_heads = keys.size("--hidden-size"), keys.size("--num-attention-heads")
    head_dim = keys.optional_size("--kv-channels")
    if head_dim is None:
        head_dim = divided("--num-attention-heads", d_model, n_heads)
    bias = not keys.flag("--disable-bias-linear")
    fields: Json = {
        "kind": "decoder",
        "d_model": d_model,
        "n_layers": keys.layers("--num-layers"),
        "vocab_size": _vocabulary(keys, notes),
        "tie_embeddings": not keys.flag("--untie-embeddings-and-output-weights"),
        "n_heads": n_heads,
        "n_kv_heads": _groups(keys, n_heads),
        "head_dim": head_dim,
        **biases(keys.flag("--add-qkv-bias") or bias, bias),
        "ffn_bias": bias,
        **_activation(keys, bias),
        **_norms(keys, notes),
        **_positions(keys, head_dim),
    }
    width = keys.optional_size("--ffn-hidden-size")
    if width is None:
        # two thirds of 4·d in 64s, where there is a gate
        width = int((4 * d_model * 2 / 3) / 64) * 64 if keys.flag("--swiglu") else 4 * d_model
        notes.append(f"--ffn-hidden-size {width}: what Megatron takes where it is not given")
    fields["d_ff"] = width
    return Described(spec=spec_of(with_experts(keys, fields, bias), NAMES), notes=tuple(notes))


def _vocabulary(keys: Keys, notes: list[str]) -> int:
    """Count the rows as stored: padded to a multiple that tensor parallelism is part of."""
    padded = keys.optional_size("--padded-vocab-size")
    each, ranks = "--make-vocab-size-divisible-by", "--tensor-model-parallel-size"
    multiple = keys.size(each) * keys.size(ranks)
    if padded is not None:
        keys.raw("--vocab-size")
        return padded
    if keys.raw("--vocab-size") is None:
        rule = "is missing, and a tokenizer is not opened"
        raise SpecError("--vocab-size", rule, None, "give the number of its pieces")
    size = keys.size("--vocab-size")
    rows = multiple * -(-size // multiple)
    if rows != size:
        padding = f"{size} padded to a multiple of {multiple}, which is {each} · {ranks}"
        notes.append(f"vocab_size {rows}: {padding}")
    return rows


def _groups(keys: Keys, n_heads: int) -> int:
    if keys.flag("--group-query-attention"):
        return keys.size("--num-query-groups")
    if (groups := keys.given("--num-query-groups")) not in (None, n_heads):
        rule = "has no effect without --group-query-attention"
        raise SpecError("--num-query-groups", rule, groups, "add it")
    return n_heads


def _activation(keys: Keys, bias: bool) -> Json:
    """Choose the activation: Megatron fuses bias and GELU
    by the tanh form, unless told otherwise.
    """
    fused = bias and not keys.flag("--no-bias-gelu-fusion")
    ways = {
        "--swiglu": {"activation": "silu", "gated": True},
        "--quick-geglu": {"activation": "silu", "swish_beta": 1.702, "gated": True},
        "--squared-relu": {"activation": "relu2", "gated": False},
        "--openai-gelu": {"activation": "gelu_tanh", "gated": False},
    }
    chosen = [name for name in ways if keys.flag(name)]
    if len(chosen) > 1:
        raise SpecError(chosen[0], f"does not go with {chosen[1]}", True, "leave one of them out")
    plain = {"activation": "gelu_tanh" if fused else "gelu", "gated": False}
    return ways[chosen[0]] if chosen else plain


def _norms(keys: Keys, notes: list[str]) -> Json:
    kind = keys.only("--normalization", "LayerNorm", "RMSNorm")
    layernorm, less_one = kind == "LayerNorm", keys.flag("--apply-layernorm-1p")
    if less_one and layernorm:
        notes.append("--apply-layernorm-1p stores weights less 1: no count depends on it")
    each = ("layernorm" if layernorm else "head") if keys.flag("--qk-layernorm") else "none"
    return {
        "norm": "layernorm" if layernorm else "rmsnorm",
        "norm_bias": layernorm,
        "norm_unit_offset": less_one and not layernorm,
        "norm_eps": keys.number("--norm-epsilon"),
        "qk_norm": each,
    }


def _positions(keys: Keys, head_dim: int) -> Json:
    kind = keys.only("--position-embedding-type", "learned_absolute", "rope", "none")
    n_positions = keys.size("--max-position-embeddings")
    if keys.flag("--use-rotary-position-embeddings"):
        kind = "rope"
    if keys.flag("--no-position-embedding") and kind != "rope":
        remedy = "write --position-embedding-type none"
        raise SpecError("--no-position-embedding", "goes with rope alone", True, remedy)
    base, percent = keys.number("--rotary-base"), keys.number("--rotary-percent")
    scaled, factor = keys.flag("--use-rope-scaling"), keys.number("--rope-scaling-factor")
    style = "interleaved" if keys.flag("--rotary-interleaved") else "half"
    if kind != "rope":
        learned = {"position": "learned", "n_positions": n_positions}
        return learned if kind == "learned_absolute" else {"position": "none"}
    turned = int(head_dim * percent)
    if percent > 1 or turned < 2:
        rule = f"leaves {turned} of {head_dim}"
        raise SpecError("--rotary-percent", rule, percent, "choose above 0 to 1")
    name = "--rotary-seq-len-interpolation-factor"
    if (stretch := keys.optional_number(name)) and scaled:
        rule = "does not go with --use-rope-scaling here"
        raise SpecError(name, rule, stretch, "leave one of them out")
    scaling = None
    if scaled:
        scaling = RopeScaling(
            kind="llama3", factor=factor, n_trained=8192, low_freq_factor=1.0, high_freq_factor=4.0
        )
    elif stretch:
        scaling = RopeScaling(kind="linear", factor=stretch)
    return {
        "position": "rope",
        "rope_theta": base,
        "rope_style": style,
        "rotary_dim": None if turned == head_dim else turned,
        **({} if scaling is None else {"rope_scaling": scaling.to_dict()}),
    }


def with_experts(keys: Keys, fields: Json, bias: bool) -> Json:
    """Return the fields with the experts of --num-experts;
    a dense width stays where a layer uses it.
    """
    if keys.raw("--num-experts") is None:
        for name in keys.data:
            if name.startswith("--moe-"):
                rule = "has no effect without --num-experts"
                raise SpecError(name, rule, keys.data[name], "add it")
        return fields
    n_experts, top_k = keys.size("--num-experts"), keys.size("--moe-router-topk")
    if bias:
        rule = "is read with experts without biases alone"
        raise SpecError("--num-experts", rule, n_experts, "add --disable-bias-linear")
    layout = _layout(keys, fields["n_layers"])
    width = keys.optional_size("--moe-ffn-hidden-size") or fields["d_ff"]
    scale = keys.optional_number("--moe-router-topk-scaling-factor")
    experts: Json = {
        "n_experts": n_experts,
        "top_k": top_k,
        "d_ff_expert": width,
        "router": _router(keys, top_k),
        "selection_bias": keys.flag("--moe-router-enable-expert-bias"),
        **({"routed_scale": scale} if scale else {}),
        **_shared(keys),
        **_grouped(keys, top_k),
    }
    added = placed(fields, layout, experts)
    return {**fields, **added}


def _layout(keys: Keys, n_layers: int) -> Json:
    """Read which layers have experts:
    every n-th from the first, or dense ones first: `[0]*1+[1]*60`.
    """
    import re

    name, given = "--moe-layer-freq", keys.raw("--moe-layer-freq")
    pattern = re.fullmatch(r"\(?\[0\]\*(\d{1,5})\+\[1\]\*(\d{1,5})\)?", str(given).replace(" ", ""))
    if pattern is None:
        every = keys.layers(name)
        stack, first = [i % every == 0 for i in range(n_layers)], 0
    else:
        first, rest, every = int(pattern[1]), int(pattern[2]), 1
        stack = [i >= first for i in range(n_layers)]
        if first + rest != n_layers or not rest:
            rule = f"must name {n_layers} layers, some with experts"
            raise SpecError(name, rule, given, "see --num-layers")
    layout = moe_layout(keys, name, [stack], first=first, every=every)
    assert layout is not None  # at least one layer has experts
    return layout


def _router(keys: Keys, top_k: int) -> str:
    score = keys.only("--moe-router-score-function", "softmax", "sigmoid")
    if score == "sigmoid":
        return "sigmoid_renorm" if top_k > 1 else "sigmoid"
    return "softmax" if keys.flag("--moe-router-pre-softmax") else "topk_softmax"


def _shared(keys: Keys) -> Json:
    width = keys.optional_size("--moe-shared-expert-intermediate-size")
    gate = keys.flag("--moe-shared-expert-gate")
    if width is None:
        return {}
    return {"n_shared_experts": 1, "d_ff_shared": width, "shared_expert_gate": gate}


def _grouped(keys: Keys, top_k: int) -> Json:
    groups = keys.optional_size("--moe-router-num-groups")
    if groups is None:
        return {}
    chosen = keys.size("--moe-router-group-topk")
    scores = {1: "max", 2: "top2_sum"}
    if top_k % chosen or top_k // chosen not in scores:
        rule = f"must leave one or two experts a group of --moe-router-topk {top_k}"
        raise SpecError("--moe-router-group-topk", rule, chosen, "choose another")
    return {"n_groups": groups, "top_groups": chosen, "group_score": scores[top_k // chosen]}


def values_of(given: dict[str, list[list[str]]], where: str) -> Json:
    """Type the arguments that size the model; any that is not known is an error."""
    data: Json = {}
    for spelled, times in given.items():
        name = ALIASES.get(spelled.replace("_", "-"), spelled.replace("_", "-"))
        if name in FLAGS:
            data[name] = True
        elif name in VALUES:
            texts = list(dict.fromkeys(words[0] if words else "" for words in times))
            if len(texts) > 1 or not texts[0]:
                rule = "is given with several values" if len(texts) > 1 else "needs a value"
                raise SpecError(name, rule, ", ".join(texts), "give one")
            value = _typed(name, texts[0])
            if data.setdefault(name, value) != value:
                raise SpecError(name, f"is given as {data[name]} too", value, "give one")
        elif not runs_only(name):
            known = (*VALUES, *sorted(FLAGS), *ALIASES)
            rule = "is not an argument that is understood here, and it may change the model"
            remedy = nearest(name, known, "remove it if it does not")
            raise InputError(f"{where}: {shown(name)} {rule}; {remedy}")
    return data


def _typed(name: str, text: str) -> int | float | str:
    """Read a number where the text is one; what only a shell knows is none."""
    if "$" in text or "`" in text:
        rule = "must be written down: only a shell knows it here"
        raise SpecError(name, rule, text, "write its value")
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 40 else text
        except ValueError:
            continue
    return text


def runs_only(name: str) -> bool:
    """Tell whether an argument is known not to change the model.

    >>> runs_only("--lr-decay-style"), runs_only("--window-size"), runs_only("-m")
    (True, False, True)
    """
    return name.startswith(RUN_FAMILIES) or name[2:] in RUN or not name.startswith("--")


MAX_CHARACTERS = 2**18
MAX_WORDS = 2**15
BREAKS = ";&|"  # between commands

ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)\+?=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z_0-9]*)\}|([A-Za-z_][A-Za-z_0-9]*))")
OPTION = re.compile(r"--?[A-Za-z][A-Za-z_0-9-]*(?:=|$)")


def options(text: str, where: str) -> dict[str, list[list[str]]]:
    """Read every option of a text, with the words that follow it each time; variables are put in.

    >>> options("ARGS='--num-layers $N --swiglu'; N=24 # --not-this", "here")
    {'--num-layers': [['24']], '--swiglu': [[]]}
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"{where}: has {len(text)} characters; a script of arguments has at most "
            f"{MAX_CHARACTERS}"
        )
    words, variables = _words(text, where)
    arguments: dict[str, list[list[str]]] = {}
    following: list[str] = []
    for word in words:
        if not word.strip(BREAKS):
            following = []
        elif not OPTION.match(word):
            following.append(_put_in(word, variables))
        else:
            name, equals, value = word.partition("=")
            following = [_put_in(value, variables)] if equals else []
            arguments.setdefault(name, []).append(following)
    return arguments


def _words(text: str, where: str) -> tuple[list[str], dict[str, str | None]]:
    """Split a script into words, those in quotes apart too,
    and its variables: None where several.
    """
    import shlex

    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=BREAKS)
    lexer.whitespace_split = True
    words: list[str] = []
    variables: dict[str, str | None] = {}
    try:
        for word in lexer:
            words += _apart(word, variables)
            if len(words) > MAX_WORDS:
                raise InputError(f"{where}: has more than {MAX_WORDS} words; no arguments have")
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: line {lexer.lineno}: {str(error).lower()}; close it") from None
    return words, variables


def _apart(word: str, variables: dict[str, str | None]) -> Iterable[str]:
    """Split a word of the script into the words of a command: `ARGS=(` and quotes fall away."""
    assigned = ASSIGNED.fullmatch(word)
    if assigned:
        name, word = assigned.groups()
        value = word.strip()
        if value.partition(" ")[0] == value and not value.startswith("("):
            variables[name] = value if variables.get(name, value) == value else None
            return ()
    return word.strip("()").split()


def _put_in(word: str, variables: dict[str, str | None]) -> str:
    match = VARIABLE.fullmatch(word)
    value = variables.get(match[1] or match[2]) if match else None
    return word if value is None else value
