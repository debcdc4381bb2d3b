"""Plants mistakes in copies of the package, one at a time: each must change an answer of the net.

    python benchmarks/net/plant.py        # says which rows saw which; 1 if one was not seen

Rows of a few models are run, those that load torch among them. A mistake whose place has moved is
an error: say where its line is now.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from run import ROOT, kind_of, run

MODELS = "(gpt2|gpt3-175b|deepseek-67b|llama-7b|mixtral-8x7b|lama)"
ROWS = (
    rf"^(?!.*(-from-code|-all-sizes)).*(\"{MODELS}\"|configs\(\"(llama|gpt2)\"|^@80 models"
    rf"|(count|formula|shard|tree|verify|check \S+) {MODELS}( |$)|train {MODELS} --formula)"
)
# what is wrong, in which file, the text there, and what stands in its place
PLANTS = (
    ("the first matrix of a gated feed-forward", "formulas/feed_forward.py",
     '{name}.gate_proj", width,', '{name}.gate_proj", width + 1,'),
    ("what a norm saves", "formulas/tape.py",
     "scale = self.constant(x.rows if", "scale = self.constant(2 * x.rows if"),
    ("a key of a config", "huggingface/config/parts.py",
     'flag("ffn_bias", "mlp_bias")', 'flag("ffn_bias", "attention_bias")'),
    ("a column of a table", "cli/models.py", '"published", "ours"', '"ours", "published"'),
    ("an exit code", "errors.py", "EXIT_WRONG_INPUT = 2", "EXIT_WRONG_INPUT = 3"),
    ("the position of decoding", "textbook/count.py",
     '"kv_len": workload.seq_len,', '"kv_len": workload.seq_len + 1,'),
    ("a condition of proofs", "proofs.json", '"n_layers >= 3"', '"n_layers >= 1"'),
    ("heads of GPT-3", "catalog/gpt3-175b.json",
     '"n_heads": 96,\n    "n_kv_heads": 96,\n    "head_dim": 128',
     '"n_heads": 48,\n    "n_kv_heads": 48,\n    "head_dim": 256'),
    ("the phase of a collective", "formulas/tape.py",
     'Move(FORWARD, "all-reduce", "tp"', 'Move(BACKWARD, "all-reduce", "tp"'),
    ("a key of JSON", "textbook/count.py",
     '"source": "formula"', '"origin": "formula"'),
)  # fmt: skip


def main() -> int:
    """Plant each mistake, and say who saw it."""
    right, _ = run(ROOT, only=ROWS)
    print(f"{len(right)} rows: {dict(Counter(map(kind_of, right)))}", flush=True)
    unseen = []
    for wrong, file, old, new in PLANTS:
        with tempfile.TemporaryDirectory() as temporary:
            package = Path(temporary) / "metacount"
            shutil.copytree(ROOT / "metacount", package)
            text = (package / file).read_text("utf-8")
            assert old in text, f"{wrong}: {file} has no {old}"
            (package / file).write_text(text.replace(old, new), encoding="utf-8")
            answers, _ = run(Path(temporary), only=ROWS)
        changed = [row for row in {*right, *answers} if right.get(row) != answers.get(row)]
        seen = Counter(map(kind_of, changed))
        print(f"{wrong}: {dict(seen.most_common()) or 'NOT SEEN'}", flush=True)
        unseen += [] if changed else [wrong]
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
