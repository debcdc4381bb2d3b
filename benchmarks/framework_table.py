"""Which function stands behind each formula of `metacount audit`, and how it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from framework_functions import (
    Function,
    Sizes,
    accelerate,
    bridge,
    foundry,
    levanter,
    levanter_params,
    lingua,
    litgpt,
    maxtext,
    megatron,
    megatron_params,
    modalities,
    nanotron,
    nemo,
    olmo,
    olmo_core,
    picotron,
    tinyllama,
    xtuner,
)
from framework_more import (
    analysis,
    cookbook,
    instruct,
    nanochat,
    nanogpt,
    prime,
    slime,
    titan_dense,
    titan_moe,
    transformers,
    trl,
    veomni,
    verl,
)

NANOCHAT = ("karpathy/nanochat", "nanochat/gpt.py")
COOK = "EleutherAI/cookbook"
VERL = ("volcengine/verl", "verl/utils/flops_counter.py")
VEOMNI = ("ByteDance-Seed/VeOmni", "veomni/utils/count_flops.py")
MAXTEXT = ("AI-Hypercomputer/maxtext", "src/maxtext/utils/maxtext_utils.py")
NEMO = ("NVIDIA/NeMo", "nemo/utils/flops_formulas.py")
NEMO_RL = ("NVIDIA-NeMo/RL", "nemo_rl/utils/flops_formulas.py")
LEVANTER = "stanford-crfm/levanter"
ANALYSIS = ("cli99/llm-analysis", "llm_analysis/analysis.py")
TITAN = ("pytorch/torchtitan", "torchtitan/models/utils.py")
INSTRUCT = ("allenai/open-instruct", "open_instruct/utils.py")
MEMORY = ("NVIDIA/Megatron-LM", "megatron/training/theoretical_memory_usage.py")


def _levanter(name: str, call: Callable[[Path, Sizes], Any]) -> Function:
    return Function(LEVANTER, f"src/levanter/models/{name}.py", call)


def _verl(name: str) -> Function:
    return Function(*VERL, verl(name), "verl", VERL[1])


def _analysis(name: str) -> Function:
    return Function(*ANALYSIS, analysis(name))


def _titan(call: Callable[[Path, Sizes], Any]) -> Function:
    return Function(*TITAN, call, "torchtitan", TITAN[1])


FUNCTIONS: dict[str, Function] = {
    "megatron-lm-training": Function(
        "NVIDIA/Megatron-LM", "megatron/training/training.py", megatron
    ),
    "megatron-lm-params": Function(*MEMORY, megatron_params("num_total_parameters")),
    "megatron-lm-active-params": Function(*MEMORY, megatron_params("num_active_parameters")),
    "megatron-bridge-training": Function(
        "NVIDIA-NeMo/Megatron-Bridge", "src/megatron/bridge/training/utils/flop_utils.py", bridge
    ),
    "olmo-core-training": Function(
        "allenai/OLMo-core", "src/olmo_core/nn/transformer/model.py", olmo_core
    ),
    "torchtitan-dense-training": _titan(titan_dense),
    "torchtitan-moe-training": _titan(titan_moe),
    **{
        f"nemo-{id}-training": Function(*NEMO, nemo(name))
        for id, name in (
            ("gpt3", "gpt3"),
            ("llama3", "llama3"),
            ("mixtral", "mixtral"),
            ("qwen3", "qwen3"),
            ("deepseek", "deepseekv3"),
            ("transformer", "transformer"),
        )
    },
    **{
        f"nemo-rl-{name}-training": Function(*NEMO_RL, nemo(name))
        for name in ("llama", "qwen2", "qwen3")
    },
    "maxtext-training": Function(*MAXTEXT, maxtext("LLAMA2")),
    "maxtext-deepseek-training": Function(*MAXTEXT, maxtext("DEEPSEEK")),
    "maxtext-gemma2-training": Function(*MAXTEXT, maxtext("GEMMA2")),
    "maxtext-gemma3-training": Function(*MAXTEXT, maxtext("GEMMA3")),
    "maxtext-gpt-oss-training": Function(*MAXTEXT, maxtext("GPT_OSS")),
    **{
        f"levanter-{name}-forward": _levanter(name, levanter)
        for name in ("llama", "gpt2", "gemma", "mistral", "mixtral")
    },
    **{
        f"levanter-{name}-params": _levanter(name, levanter_params) for name in ("llama", "mixtral")
    },
    "litgpt-training": Function(
        "Lightning-AI/litgpt", "litgpt/utils.py", litgpt, "litgpt", "litgpt/utils.py"
    ),
    "tinyllama-training": Function("jzhang38/TinyLlama", "lit_gpt/speed_monitor.py", tinyllama),
    "nanogpt-training": Function("karpathy/nanoGPT", "model.py", nanogpt),
    "nanochat-training": Function(*NANOCHAT, nanochat("estimate_flops")),
    "nanochat-prefill": Function(*NANOCHAT, nanochat("estimate_prefill_flops")),
    "nanochat-kv-cache": Function(*NANOCHAT, nanochat("kv_bytes_per_token")),
    **{
        f"eleuther-cookbook-{id}": Function(
            COOK,
            "calc/calc_transformer_flops.py",
            cookbook("calc_flops", "total_flops", infer=infer, checkpoint_activations=again),
        )
        for id, infer, again in (
            ("training", False, False),
            ("training-recompute", False, True),
            ("forward", True, False),
        )
    },
    "eleuther-cookbook-params": Function(
        COOK, "calc/calc_transformer_params.py", cookbook("calc_params", "total_params")
    ),
    "eleuther-cookbook-kv-cache": Function(
        COOK, "calc/calc_transformer_mem.py", cookbook("calc_mem", "kv_cache_mem", infer=True)
    ),
    "llm-foundry-training": Function(
        "mosaicml/llm-foundry",
        "llmfoundry/models/mpt/modeling_mpt.py",
        foundry,
        "llm-foundry",
        "llmfoundry/models/mpt/modeling_mpt.py",
    ),
    "picotron-training": Function("huggingface/picotron", "picotron/utils.py", picotron),
    "nanotron-training": Function(
        "huggingface/nanotron",
        "src/nanotron/models/llama.py",
        nanotron,
        "nanotron",
        "nanotron/models/llama.py",
    ),
    "modalities-training": Function(
        "Modalities/modalities",
        "src/modalities/utils/mfu.py",
        modalities,
        "modalities",
        "modalities/utils/mfu.py",
    ),
    "xtuner-training": Function(
        "InternLM/xtuner",
        "xtuner/engine/hooks/throughput_hook.py",
        xtuner,
        "xtuner",
        "xtuner/engine/hooks/throughput_hook.py",
    ),
    "accelerate-training": Function(
        "huggingface/accelerate", "examples/torch_native_parallelism/utils.py", accelerate
    ),
    "olmo-forward": Function("allenai/OLMo", "olmo/model.py", olmo("num_fwd_flops")),
    "olmo-training": Function(
        "allenai/OLMo", "olmo/model.py", olmo("num_fwd_flops", "num_bck_flops")
    ),
    "lingua-training": Function("facebookresearch/lingua", "apps/main/transformer.py", lingua),
    "transformers-training": Function(
        None, "", transformers, "transformers", "transformers/trainer.py"
    ),
    "trl-training": Function(None, "", trl, "trl", "trl/trainer/utils.py"),
    "verl-qwen2-training": _verl("_estimate_qwen2_flops"),
    "verl-qwen2-moe-training": _verl("_estimate_qwen2_moe_flops"),
    "verl-deepseek-training": _verl("_estimate_deepseek_v3_flops"),
    "verl-gemma3-training": _verl("_estimate_gemma3_flops"),
    "verl-gpt-oss-training": _verl("_estimate_gpt_oss_flops"),
    "veomni-qwen-training": Function(*VEOMNI, veomni("_compute_qwen_dense_text_flops", raw=True)),
    "veomni-qwen3-moe-training": Function(
        *VEOMNI, veomni("_compute_qwen3_moe_text_flops", raw=True)
    ),
    "veomni-llama-training": Function(*VEOMNI, veomni("_estimate_llama_flops")),
    "veomni-deepseek-training": Function(*VEOMNI, veomni("_estimate_deepseek_v3_flops")),
    "prime-rl-training": Function(
        "PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/perf.py", prime
    ),
    "prime-rl-deepseek-training": Function(
        "PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/perf.py", prime
    ),
    "slime-forward": Function("THUDM/slime", "slime/utils/flops_utils.py", slime),
    "open-instruct-prefill": Function(*INSTRUCT, instruct("prefill_flops")),
    "open-instruct-params": Function(*INSTRUCT, instruct("_calculate_num_params")),
    "open-instruct-kv-cache": Function(*INSTRUCT, instruct("kv_cache_write_bytes")),
    "llm-analysis-params": _analysis("get_num_params_total"),
    "llm-analysis-active-params": _analysis("get_num_active_params_total"),
    "llm-analysis-forward": _analysis("get_num_flops_fwd_total"),
    "llm-analysis-kv-cache": _analysis("get_memory_kv_cache_per_layer"),
}
