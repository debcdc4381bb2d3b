"""Somebody's own formulas and modules."""

from torch import nn


def whole(d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size):
    block = 2 * d_model * head_dim * (n_heads + n_kv_heads) + 3 * d_model * d_ff + 2 * d_model
    return n_layers * block + d_model + 2 * vocab_size * d_model


def tied(config):
    return (
        whole(
            config.hidden_size,
            config.num_hidden_layers,
            config.n_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.intermediate_size,
            config.vocab_size,
        )
        - config.vocab_size * config.hidden_size
    )


def fails(d_model):
    raise ValueError("not today")


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(64, 29, bias=False), nn.Linear(64, 29, bias=False)
        self.down = nn.Linear(29, 64, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


table = nn.Sequential(nn.Embedding(101, 12), nn.LayerNorm(12), nn.Linear(12, 101))
number = 7
