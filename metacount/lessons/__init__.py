"""Pages that teach one topic each, in English and Chinese, computed while they are made.

`text/LANGUAGE/TOPIC.txt` is the prose: it holds no number. Where one belongs stands a placeholder,
`{{ name }}` or `{{ name:format }}`; `parts/TOPIC.py` holds, under that name, the function that
computes it for the model at hand. `source` reads the texts, `making` puts both together.
"""

from __future__ import annotations

# topic -> the model of a reader who names none
TOPICS = {
    "block": "textbook-block",
    "embedding": "gpt2-medium",
    "norm": "llama-7b",
    "ffn": "llama-7b",
    "position": "llama-7b",
    "attention": "llama-7b",
    "moe": "mixtral-8x7b",
    "qwen3": "qwen3-32b",
    "gpt": "gpt2",
    "compute": "llama-7b",
    "paper": "llama3-8b",
}
# these run modules, and so import torch
RUNNING = ("norm", "ffn", "position", "attention", "moe", "gpt")
