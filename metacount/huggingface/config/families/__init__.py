"""One file for each group of related model types; only the file that is needed is loaded."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.huggingface.config.families.family import Family

FILES = {
    "llama": "llama mistral ministral3 qwen2 qwen3 phi3 granite smollm3 seed_oss internlm3 helium",
    "layouts": "olmo olmo2 cohere cohere2 glm glm4 starcoder2 stablelm",
    "gemma": "gemma gemma2 gemma3_text vaultgemma",
    "gpt": "gpt2 gpt_bigcode gpt_neo gpt_neox gptj codegen phi persimmon",
    "bloom": "opt bloom falcon mpt xglm biogpt",
    "experts": "mixtral qwen2_moe qwen3_moe olmoe phimoe granitemoe gpt_oss minimax_m2 glm4_moe",
    "gemma3n": "gemma3n_text",
    "llama4": "llama4_text",
    "dense": "arcee ernie4_5 iquestcoder jais2 nemotron nanochat cwm ministral olmo3",
    "mixtures": "dots1 solar_open flex_olmo ernie4_5_moe glm4_moe_lite youtu mellum",
    "granite": "hyperclovax granite_swa granitemoeshared granitemoe_swa",
    "hunyuan": "hunyuan_v1_dense hunyuan_v1_moe hy_v3",
    "exaone": "exaone4 exaone_moe kolibri1",
    "lfm2": "lfm2 lfm2_moe",
    "griffin": "recurrent_gemma",
    "sparse": "deepseek_v32 minimax_m3_vl_text",
    "latent": "deepseek_v2 deepseek_v3 minicpm3",
    "longcat": "longcat_flash",
    "linear_attention": "qwen3_next qwen3_5_text qwen3_5_moe_text olmo_hybrid minimax",
    "kimi": "kimi_linear",
    "state_space": "mamba falcon_mamba mamba2 jamba",
    "mamba_hybrids": "bamba granitemoehybrid falcon_h1",
    "nemotron_h": "nemotron_h",
    "zamba": "zamba2",
    "xlstm": "xlstm",
    "seq2seq": "t5 switch_transformers mt5 bart mbart plbart",
    "bert": "bert roberta camembert xlm-roberta electra modernbert",
}
FAMILIES = {name: file for file, names in FILES.items() for name in names.split()}


def family_of(model_type: str) -> Family | None:
    """Find the mapping of a model type, if there is one."""
    file = FAMILIES.get(model_type)
    if file is None:
        return None
    family: Family = import_module(f"{__name__}.{file}").FAMILIES[model_type]
    return family
