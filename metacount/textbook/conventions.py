"""One workload under the conventions that people count FLOPs by, each with who uses it.

They leave different things out, count different passes, and take a masked product whole, halved or
exactly. Values are exact. Of each user a `Source` says where the convention is written: a file and
line, or a section.
"""

from __future__ import annotations

from fractions import Fraction

from metacount.errors import InputError
from metacount.formulas import ends, model, pieces, sublayers
from metacount.formulas.dim import Dim
from metacount.formulas.tape import OF_PAIRS, Product, Weight
from metacount.formulas.tape import by_role as terms_by_role
from metacount.frozen import frozen

TYPE_CHECKING = False  # typing.TYPE_CHECKING, without loading typing
if TYPE_CHECKING:
    from metacount.spec import ModelSpec, Workload


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


FORWARD = "forward"
TRAINING = "training (forward and backward)"
RECOMPUTED = "training, with recomputation"


@frozen
class Amounts:
    """What the conventions are made of, for one workload.

    `params`, `stored`, `looked_up`, `token_table` and `positions` are parameters; all else are
    FLOPs of one forward over the workload: products with weights, the head's, the blocks' and the
    routers' among them, and products between positions - all pairs, the same if the heads
    together were as wide as the model, and exactly those that the mask keeps.
    """

    tokens: Dim
    params: Dim
    stored: Dim
    looked_up: Dim
    token_table: Dim
    positions: Dim
    weights: Dim
    head: Dim
    blocks: Dim
    routers: Dim
    pairs: Dim
    square_pairs: Dim
    kept_pairs: Dim
    causal: bool

    def letters(self) -> dict[str, Dim]:
        """Return the amounts of the whole workload under the letters of the formulas."""
        n = self.tokens
        return {
            "P": n * self.params,
            "Q": n * self.stored,
            "E": n * self.looked_up,
            "T": n * self.token_table,
            "L": n * self.positions,
            "W": self.weights,
            "H": self.head,
            "B": self.blocks,
            "R": self.routers,
            "A": self.pairs,
            "D": self.square_pairs,
            "C": self.kept_pairs,
        }


# a letter that stands for the same amount as another one is written as the other
SAME = (("Q", "P"), ("T", "E"), ("D", "A"))


@frozen
class Convention:
    """One way to count: in words, as a formula of the amounts' letters, with its value and users.

    `value` is of the whole workload, in FLOPs, or in multiply-adds where `unit` says MAC.
    """

    passes: str
    says: str
    formula: str
    value: int
    unit: str
    sources: tuple[Source, ...]

    @property
    def users(self) -> str:
        """Everybody who counts so, and where it is written."""
        return "; ".join(source.told() for source in self.sources)

    def per_token(self, tokens: int) -> Fraction:
        """Return the value of one token, exact."""
        return Fraction(self.value, tokens)


def amounts(spec: ModelSpec, workload: Workload) -> Amounts:
    """Compute the amounts of a workload; an `InputError` for two stacks or a state."""
    if spec.has_encoder:
        raise InputError(
            "--conventions are of a model with one stack: an encoder-decoder has "
            "tokens of two kinds, and 6·N of neither; leave it out"
        )
    if spec.recurrent != "none":
        raise InputError(
            "--conventions are of a model with attention in every layer: none of them counts a "
            f"mixer that keeps a state ({spec.recurrent}); leave it out"
        )
    return amounts_at(spec, workload.batch_size, workload.seq_len, workload.prefix_len)


def amounts_at(spec: ModelSpec, batch_size: Dim, seq_len: Dim, prefix_len: Dim = 0) -> Amounts:
    """Compute the amounts of a model of one stack, with letters too for sizes and for the run."""
    full = model.matmul_flops(spec, batch_size=batch_size, seq_len=seq_len)
    causal = model.causal_matmul_flops(
        spec, batch_size=batch_size, seq_len=seq_len, prefix_len=prefix_len
    )
    n_tokens = batch_size * seq_len
    run = model.forward_run(spec, batch_size=batch_size, seq_len=seq_len)
    terms: tuple[Weight | Product, ...] = (*model.weights(spec), *model.products(spec))
    # without the products between positions, those with weights are left
    by_role = terms_by_role(
        (term for term in terms if not (isinstance(term, Product) and term.per in OF_PAIRS)),
        lambda term: term.flops(run),
        model.ROLES,
    )
    weights = sum(by_role.values())
    around = sum(sublayers.end_flops(spec, run).values())
    token_table = sublayers.token_table_params(spec)
    positions = _position_rows(spec)
    return Amounts(
        tokens=n_tokens,
        params=sum(model.active_params_by_role(spec).values()),
        stored=model.params(spec),
        looked_up=model.looked_up_params(spec) + positions,
        token_table=token_table,
        positions=positions,
        weights=weights,
        head=by_role["head"],
        blocks=weights - around,
        routers=2 * n_tokens * _router_weights(spec),
        pairs=full - weights,
        # 2 FLOPs, scores and values, d columns for each of S positions in every block
        square_pairs=4 * n_tokens * seq_len * spec.n_layers * spec.d_model,
        kept_pairs=causal - weights,
        causal=spec.kind != "encoder",
    )


def _position_rows(spec: ModelSpec) -> Dim:
    """Count the parameters of tables with a row a position: embeddings, PanGu's queries."""
    rows: Dim = spec.n_query_positions * spec.d_model
    if spec.position == "learned" and spec.n_positions is not None:
        rows += spec.n_positions * ends.table_width(spec)
    return rows


def _router_weights(spec: ModelSpec) -> Dim:
    """Count the weights that score experts in all layers: routers, gates of shared experts."""
    if spec.n_experts is None:
        return 0
    rows = spec.n_experts + spec.n_zero_experts + int(spec.shared_expert_gate)
    return pieces.moe_layers(spec, spec.n_layers) * sublayers.router_params(spec.d_model, rows)


def conventions(spec: ModelSpec, workload: Workload) -> tuple[Convention, ...]:
    """List the conventions that have a meaning for the model: an encoder has no causal mask.

    Conventions that come to the same amounts with this model stand in one row.

    >>> from metacount.catalog import entry
    >>> from metacount.spec import Workload
    >>> llama = conventions(entry("llama3-8b").spec(), Workload(seq_len=8192))
    >>> [int(c.per_token(8192)) for c in llama if c.formula in ("3·B", "8·P + 4·A")]
    [41875931136, 81421959168]
    """
    a = amounts(spec, workload)
    rows: dict[tuple[str, str], Convention] = {}
    whole_heads = spec.d_model % spec.n_heads == 0
    for passes, says, formula, needs_mask, sources in _table(spec):
        if needs_mask and not a.causal:
            continue
        if not whole_heads and {TORCHTITAN_LLAMA, NANOGPT} & {*sources}:
            continue  # they take d // h, and nanoGPT refuses such a model
        written = _written(formula, a)
        row = rows.get((passes, written))
        rows[passes, written] = Convention(
            passes=passes,
            says=row.says if row else says,
            formula=written,
            value=_value(formula, a),
            unit="MAC" if says.startswith("multiply-adds") else "FLOP",
            sources=(*(row.sources if row else ()), *sources),
        )
    return tuple(rows.values())


def _value(formula: str, a: Amounts) -> int:
    amount = a.letters()
    exact = sum(Fraction(times) * amount[letter] for letter, times in FORMULAS[formula].items())
    if Fraction(exact).denominator != 1:
        raise AssertionError(f"{exact} is no whole number of FLOPs")
    return int(exact)


def _written(formula: str, a: Amounts) -> str:
    """Write the formula in as few letters as this model needs."""
    amount = a.letters()
    for letter, other in SAME:
        if amount[letter] == amount[other]:
            formula = formula.replace(letter, other)
    for letter in "LR":
        if not amount[letter]:
            formula = formula.replace(f" - {letter}", "")
    return formula.replace("(P)", "P").replace("(Q)", "Q")


# a formula as it is printed, and how often each amount is in it
FORMULAS: dict[str, dict[str, int | str]] = {
    "B": {"B": 1},
    "B + A/2": {"B": 1, "A": "1/2"},
    "2·P": {"P": 2},
    "W + A": {"W": 1, "A": 1},
    "W + A/2": {"W": 1, "A": "1/2"},
    "W + C": {"W": 1, "C": 1},
    "(W + A)/2": {"W": "1/2", "A": "1/2"},
    "3·B": {"B": 3},
    "6·(Q - E)": {"Q": 6, "E": -6},
    "6·P": {"P": 6},
    "3·(W + C)": {"W": 3, "C": 3},
    "3·(W - R + A/2)": {"W": 3, "R": -3, "A": "3/2"},
    "6·(Q - T) + 3.5·D/2": {"Q": 6, "T": -6, "D": "7/4"},
    "3·W + 3.5·A/2": {"W": 3, "A": "7/4"},
    "6·Q + 3·D/2": {"Q": 6, "D": "3/2"},
    "3·(W + A)": {"W": 3, "A": 3},
    "6·P + 3·A": {"P": 6, "A": 3},
    "6·P + 3·D": {"P": 6, "D": 3},
    "6·(P - E) + 3·A": {"P": 6, "E": -6, "A": 3},
    "6·(P - E) + 3·D": {"P": 6, "E": -6, "D": 3},
    "6·(Q - L) + 3·D": {"Q": 6, "L": -6, "D": 3},
    "3·W + 3.5·A": {"W": 3, "A": "7/2"},
    "3·(W + A)/2": {"W": "3/2", "A": "3/2"},
    "3·W + 4·A": {"W": 3, "A": 4},
    "3·W + 6·A": {"W": 3, "A": 6},
    "3·W + B + 4·A": {"W": 3, "B": 1, "A": 4},
    "8·P + 4·D": {"P": 8, "D": 4},
}


def _table(spec: ModelSpec) -> list[tuple[str, str, str, bool, tuple[Source, ...]]]:
    """List each convention: passes, words, formula, whether it needs a causal mask, users."""
    # torchtitan leaves a tied table in: the head multiplies with it
    tables = "6 per parameter" if spec.tie_embeddings else "tables left out"
    titan = "6·P" if spec.tie_embeddings else "6·(P - E)"
    return [
        (FORWARD, "weights of the blocks", "B", False, (KAPLAN_N,)),
        (FORWARD, "weights of the blocks, attention halved", "B + A/2", True, (KAPLAN_FORWARD,)),
        (FORWARD, "2 per parameter", "2·P", False, (THUMB,)),
        (FORWARD, "products, attention in full", "W + A", False, (FLOP_COUNTER,)),
        (FORWARD, "products, attention halved", "W + A/2", True, (FLASH,)),
        (FORWARD, "products, attention as masked", "W + C", True, (OURS,)),
        (FORWARD, "multiply-adds, attention in full", "(W + A)/2", False,
         (FVCORE, DEEPSPEED)),
        (TRAINING, "weights of the blocks", "3·B", False, (KAPLAN,)),
        (TRAINING, "6 per stored parameter, tables left out", "6·(Q - E)", False, (TRAINER,)),
        (TRAINING, "6 per parameter", "6·P", False, (HOFFMANN,)),
        (TRAINING, "products, attention as masked", "3·(W + C)", True, (OURS_TIMES_3,)),
        (TRAINING, "products without routers, attention halved", "3·(W - R + A/2)", True,
         (megatron(spec),)),
        (TRAINING, "token table left out, halved, fused backward", "6·(Q - T) + 3.5·D/2", True,
         (LINGUA, BLT)),
        (TRAINING, "products, halved, fused backward", "3·W + 3.5·A/2", True,
         (FLASH_BACKWARD,)),
        (TRAINING, "6 per stored parameter, attention halved", "6·Q + 3·D/2", True, (LLM_C,)),
        (TRAINING, "products, attention in full", "3·(W + A)", False, (KORTHIKANTI_MODEL,)),
        (TRAINING, f"{tables}, attention in full", f"{titan} + 3·A", False, (TORCHTITAN,)),
        (TRAINING, f"{tables}, attention in full", f"{titan} + 3·D", False,
         (TORCHTITAN_LLAMA,)),
        (TRAINING, "products, in full, fused backward", "3·W + 3.5·A", False,
         (FLOP_COUNTER_BACKWARD,)),
        (TRAINING, "6 per parameter, attention in full", "6·P + 3·A", False, (PALM,)),
        (TRAINING, "6 per parameter, attention in full", "6·P + 3·D", False, (FOUNDRY,)),
        (TRAINING, "positions left out, attention in full", "6·(Q - L) + 3·D", False,
         (NANOGPT,)),
        (TRAINING, "multiply-adds, attention in full", "3·(W + A)/2", False,
         (PROFILER_TIMES_3,)),
        (RECOMPUTED, "attention's products once more", "3·W + 4·A", False,
         (KORTHIKANTI_WORDS,)),
        (RECOMPUTED, "attention's products three times more", "3·W + 6·A", False,
         (KORTHIKANTI,)),
        (RECOMPUTED, "the blocks once more, not the head", "3·W + B + 4·A", False,
         (MEGATRON_PAPER,)),
        (RECOMPUTED, "everything once more, 8 per parameter", "8·P + 4·D", False,
         (FOUNDRY_HFU,)),
    ]  # fmt: skip
