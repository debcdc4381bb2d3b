"""Pages that teach one topic each, in English and Chinese, computed while they are made.

`text/LANGUAGE/TOPIC.txt` is the prose: it holds no number. Where one belongs stands a placeholder,
`{{ name }}` or `{{ name:format }}`; `parts/TOPIC.py` holds, under that name, the function that
computes it for the model at hand. `source` reads the texts, `making` puts both together.
"""

from __future__ import annotations

TOPICS = (
    "block",
    "embedding",
    "norm",
    "ffn",
    "position",
    "attention",
    "moe",
    "qwen3",
    "gpt",
    "compute",
    "paper",
)
LANGUAGES = ("en", "zh")
