"""The parameters of a dense Qwen3 as a script of somebody's might add them up."""

from typing import Any


def params(config: Any) -> int:
    """Embedding, blocks and head; the norms of a block are counted twice."""
    d, head = config.hidden_size, config.head_dim
    attention = 2 * d * head * (config.num_attention_heads + config.num_key_value_heads)
    mlp = 3 * d * config.intermediate_size
    norms = 4 * d + 2 * head
    ends = 2 * config.vocab_size * d
    total: int = ends + config.num_hidden_layers * (attention + mlp + norms) + d
    return total
