"""Who counts FLOPs by which convention, and where it is written: a file and line, or a section.

`read` says that the place was read, in that commit or in the text of the paper, and that the
formula beside it is what stands there in our letters. Where it is False the attribution comes from
somebody else, and the screen says so.
"""

from __future__ import annotations

from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec


@frozen
class Source:
    """One user of a convention: who, where it is written, and whether it was read there.

    >>> Source(who="them", where="paper, sec. 1", read=False).told()
    'them (paper, sec. 1; not looked up)'
    """

    who: str
    where: str
    read: bool = True

    def told(self) -> str:
        """Write the user and the place in one line."""
        if not self.where:
            return f"{self.who} (no source)"
        return f"{self.who} ({self.where}{'' if self.read else '; not looked up'})"


KAPLAN_N = Source(
    who="Kaplan et al. 2020: 2·N, N = 12·L·d², the head not in it",
    where="arXiv:2001.08361, sec. 2.1",
)
KAPLAN_FORWARD = Source(
    who="Kaplan et al. 2020: C_forward = 2·N + 2·n_layer·n_ctx·d_attn",
    where="arXiv:2001.08361, sec. 2.1 and table 1",
)
KAPLAN = Source(who="Kaplan et al. 2020: C = 6·N, N = 12·L·d²", where="arXiv:2001.08361, sec. 2.1")
HOFFMANN = Source(
    who="Hoffmann et al. 2022 (Chinchilla): C = 6·N·D, N with its embeddings",
    where="arXiv:2203.15556, app. F",
)
THUMB = Source(who="a rule of thumb for inference", where="", read=False)
TRAINER = Source(
    who="Trainer.floating_point_ops, a tied head left out too",
    where="transformers 5.23.0, trainer.py:4232",
)
FLOP_COUNTER = Source(
    who="torch's FlopCounterMode, over attention written out or a fused kernel of CUDA; "
    "matmul_flops here",
    where="torch 2.13, torch/utils/flop_counter.py:313",
)
FLOP_COUNTER_BACKWARD = Source(
    who="torch's FlopCounterMode over a fused attention and its backward",
    where="torch 2.13, torch/utils/flop_counter.py:505",
)
OURS = Source(who="causal_matmul_flops here", where="formulas/model.py")
OURS_TIMES_3 = Source(who="three times causal_matmul_flops here", where="formulas/model.py")
FLASH = Source(
    who="FlashAttention's benchmark, of its own part",
    where="Dao-AILab/flash-attention 0251105, benchmarks/benchmark_flash_attention.py:29",
)
FLASH_BACKWARD = Source(
    who="FlashAttention's benchmark (backward 2.5 times), with the products around it",
    where="Dao-AILab/flash-attention 0251105, benchmarks/benchmark_flash_attention.py:30",
)
FVCORE = Source(
    who="fvcore's FlopCountAnalysis, which calls it flop; it adds layer norms, and sees "
    "attention only where it is written out",
    where="facebookresearch/fvcore 3378afe, fvcore/nn/flop_count.py:28",
)
DEEPSPEED = Source(
    who="MACs of DeepSpeed's profiler",
    where="microsoft/DeepSpeed 38327e0, deepspeed/profiling/flops_profiler/profiler.py:518 and 857",
)
PROFILER_TIMES_3 = Source(who="three times a profiler's MACs", where="", read=False)
MEGATRON_PAPER = Source(
    who="Narayanan et al. 2021: 96·B·s·l·h²·(1 + s/6h + V/16lh)",
    where="arXiv:2104.04473, sec. 5.1, eq. 3",
)
LINGUA = Source(
    who="lingua, get_num_flop_per_token",
    where="facebookresearch/lingua 437d680, apps/main/transformer.py:46 and train.py:479",
)
BLT = Source(
    who="BLT, the same function",
    where="facebookresearch/blt 9774ed4, bytelatent/transformer.py:38 and train.py:555",
)
LLM_C = Source(
    who="llm.c, gpt2_estimate_mfu: 6·N + 6·L·C·T",
    where="karpathy/llm.c f1e2ace, train_gpt2.cu:1143",
)
KORTHIKANTI_MODEL = Source(
    who="model FLOPs of Korthikanti et al. 2022: 72·B·L·s·h²·(1 + s/6h + v/12hL)",
    where="arXiv:2205.05198, app. A, eq. 7",
)
KORTHIKANTI = Source(
    who="hardware FLOPs of Korthikanti et al. 2022: 72·B·L·s·h²·(1 + s/3h + v/12hL)",
    where="arXiv:2205.05198, app. A, eq. 8 and table 5",
)
KORTHIKANTI_WORDS = Source(
    who="selective recomputation in the words of Korthikanti et al. 2022, 2·B·s²·h twice more; "
    "their eq. 8 and table 5 count three times that",
    where="arXiv:2205.05198, app. A",
)
TORCHTITAN_LLAMA = Source(
    who="torchtitan's llama3, heads of d // h",
    where="pytorch/torchtitan b5bcd76, torchtitan/models/utils.py:455 and llama3/model.py:89",
)
TORCHTITAN = Source(
    who="torchtitan's qwen3 and gpt_oss, heads of head_dim",
    where="pytorch/torchtitan b5bcd76, torchtitan/models/utils.py:541 and qwen3/model.py:117",
)
PALM = Source(
    who="PaLM: 6·N + 12·L·H·Q·T",
    where="arXiv:2204.02311, app. B, as nanoGPT's model.py:292 describes it",
    read=False,
)
NANOGPT = Source(
    who="nanoGPT, estimate_mfu, heads of d // h",
    where="karpathy/nanoGPT 3adf61e, model.py:296",
)
FOUNDRY = Source(
    who="MFU of MosaicML's llm-foundry",
    where="mosaicml/llm-foundry 8c8dd48, llmfoundry/models/mpt/modeling_mpt.py:1604",
)
FOUNDRY_HFU = Source(
    who="HFU of MosaicML's llm-foundry, with activation checkpointing",
    where="mosaicml/llm-foundry 8c8dd48, scripts/train/benchmarking/collect_results.py:180",
)


def megatron(spec: ModelSpec) -> Source:
    """Cite Megatron-LM, with what its own formula does otherwise with such a model."""
    told = "Megatron-LM, num_floating_point_operations"
    if spec.gated and spec.activation != "silu":
        told += ", which counts two matrices where a gate is not SwiGLU (here three)"
    if spec.attention == "mla":
        told += ", which adds 2 FLOPs for each weight of a latent norm (not here)"
    return Source(who=told, where="NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py:802")
