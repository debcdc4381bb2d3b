"""What a config from a stranger may hold: checked before any of it reaches transformers.

A config is data. Its sizes are bounded, so that no list, table or module can grow without end; what
would load code, weights or kernels is taken out, and said.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from metacount.errors import SpecError
from metacount.files import untagged
from metacount.huggingface.config.keys import HARMLESS, words

if TYPE_CHECKING:
    from metacount.files import Json

MAX_SIZE = 2**31  # of any whole number
MAX_LAYERS = 4096  # of any count of layers or blocks
MAX_EXPERTS = 65536
MAX_POSITIONS = 2**27  # tables made with Python or NumPy take this many steps
MAX_ITEMS = 65536  # of a list or an object
MAX_DEPTH = 12
MAX_VALUES = 200_000  # in all
MAX_TEXT = 4096

# Keys that count blocks, in all the spellings of transformers' configs.
LAYER_COUNTS = words(
    "num_hidden_layers num_layers n_layers n_layer num_blocks n_blocks depth depths "
    "encoder_layers decoder_layers num_encoder_layers num_decoder_layers "
    "speech_encoder_layers text_encoder_layers num_hidden_groups inner_group_num "
    "num_mtp_layers mtp_num_hidden_layers num_nextn_predict_layers num_sparse_encoder_layers "
    "num_sparse_decoder_layers num_block num_labels num_adapter_layers adapter_num_layers "
    "num_codebooks num_quantizers num_feed_forward_networks num_decoder_blocks decoder_depth "
    "encoder_depth n_mtp_layers num_cycles H_cycles L_cycles num_self_attends_per_block "
    "num_mem_blocks hidden_layers num_hidden_blocks num_memory_blocks num_local_layers "
    "num_global_layers num_hash_buckets_layers encoder_num_layers decoder_num_layers layers"
)
EXPERT_COUNTS = words(
    "num_experts num_local_experts n_routed_experts n_experts moe_num_experts "
    "num_routed_experts num_shared_experts n_shared_experts moe_num_shared_experts "
    "zero_expert_num"
)
POSITION_COUNTS = words(
    "max_position_embeddings n_positions n_ctx max_sequence_length max_seq_len "
    "max_source_positions max_target_positions seq_length original_max_position_embeddings "
    "relative_attention_num_buckets"
)

POSITIVE = words(
    "hidden_size d_model n_embd dim num_attention_heads n_head n_heads num_heads vocab_size "
    "num_key_value_heads head_dim num_hidden_layers n_layer num_layers"
)
SIZES = LAYER_COUNTS | EXPERT_COUNTS | POSITION_COUNTS | POSITIVE

# Taken out wherever they stand: none changes a count, and each could fetch or run something.
DROPPED = words(
    "dtype torch_dtype attn_implementation _attn_implementation _attn_implementation_internal "
    "_attn_implementation_autoset experts_implementation _experts_implementation "
    "_experts_implementation_internal kernel_config use_kernels name_or_path _name_or_path "
    "_commit_hash transformers_version id2label label2id gradient_checkpointing "
    "task_specific_params output_attentions output_hidden_states return_dict use_cache "
    "torchscript use_mamba_kernels"
)
NOTED = {
    "auto_map": "auto_map is ignored: no remote code is run, transformers' own class is counted",
    "quantization_config": "quantization_config is ignored: values are counted as the "
    "unquantised module stores them",
}
# True would fetch weights from the hub while a module is built.
FETCHING = frozenset(["use_pretrained_backbone"])


def checked_config(data: Json) -> tuple[Json, tuple[str, ...]]:
    """Copy `data` within bounds and without the keys that are not ours to obey,
    and return notes with it.

    Raises `SpecError` for a size, a text or a structure that no model has.
    """
    notes: dict[str, None] = {}
    seen = [0]

    def walk(value: Any, name: str, depth: int) -> Any:
        seen[0] += 1
        remedy = "give a model's config.json"
        if seen[0] > MAX_VALUES:
            raise SpecError("config", f"must hold at most {MAX_VALUES} values", seen[0], remedy)
        if depth > MAX_DEPTH:
            raise SpecError(name, f"must be nested at most {MAX_DEPTH} deep", depth, remedy)
        value = untagged(value)
        is_part = name.endswith("_config") and not name.startswith("use_") and name not in HARMLESS
        if is_part and isinstance(value, int | float | list):
            raise SpecError(name, "must be an object", value, "remove it")
        if isinstance(value, dict | list | tuple) and len(value) > MAX_ITEMS:
            rule = f"must have at most {MAX_ITEMS} items"
            raise SpecError(name, rule, f"{len(value)} items", remedy)
        if isinstance(value, dict):
            items = ((key, item) for key, item in value.items() if _kept(key, item, notes))
            return {key: walk(item, key, depth + 1) for key, item in items}
        if isinstance(value, list | tuple):
            return [walk(item, name, depth + 1) for item in value]
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                rule = f"must be text of at most {MAX_TEXT} characters"
                raise SpecError(name, rule, f"{len(value)} characters", "shorten it")
            return value
        if isinstance(value, float) and not math.isfinite(value) and name in SIZES:
            raise SpecError(name, "must be a whole number", value, "write its size")
        if value is not None and not isinstance(value, int | float):
            remedy = "write text, a number, true, false, null, a list or an object"
            raise SpecError(name, "must be a value of JSON", type(value).__name__, remedy)
        if isinstance(value, int) and not isinstance(value, bool):
            _check_size(name, value)
        return value

    return walk(data, "config", 0), tuple(notes)


def _kept(key: object, value: object, notes: dict[str, None]) -> bool:
    if not isinstance(key, str) or not key.isidentifier() or key.startswith("__"):
        # transformers makes each key an attribute; "gpt-j" style keys exist only in sub-objects
        return isinstance(key, str) and not key.startswith("__")
    if key in NOTED:
        if value:
            notes[NOTED[key]] = None
        return False
    if key in FETCHING and value:
        rule = "must be false: no weights are fetched to count a model"
        raise SpecError(key, rule, value, "set it to false, or remove it")
    return key not in DROPPED


def _check_size(name: str, value: int) -> None:
    limit, what = MAX_SIZE, "a size"
    if name in LAYER_COUNTS:
        limit, what = MAX_LAYERS, "a number of layers"
    elif name in EXPERT_COUNTS:
        limit, what = MAX_EXPERTS, "a number of experts"
    elif name in POSITION_COUNTS:
        limit, what = MAX_POSITIONS, "a number of positions"
    if name in POSITIVE and value < 1:
        raise SpecError(name, "must be at least 1", value, f"choose 1 to {limit}")
    if not -limit <= value <= limit:
        rule = f"is too large for {what} (limit {limit})"
        raise SpecError(name, rule, value, f"choose at most {limit}")
