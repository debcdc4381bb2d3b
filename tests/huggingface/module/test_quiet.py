"""Advice of transformers stays away from stderr; what stands in the way of a count does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers.release import one_day_in, one_in


@one_day_in(6)
@pytest.mark.parametrize(
    "arguments",
    one_in(
        4,
        [
            ["count", "type:mamba", "--seq", "8"],
            ["count", "type:jamba", "--seq", "8"],
            ["verify", "type:mamba2", "--seq", "8"],
            ["formula", "type:mamba", "--from-code", "--quantity", "state_bytes", "--seq", "8"],
            ["survey", "mamba", "mamba2", "--kind", "causal-LM"],
        ],
    ),
)
def test_nothing_foreign_reaches_stderr(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metacount", *arguments],
        capture_output=True,
        timeout=300,
        check=False,
        env={k: v for k, v in os.environ.items() if k != "TRANSFORMERS_VERBOSITY"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
