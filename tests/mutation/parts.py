"""Which tests are run for which part of the package, and which mutants nobody could notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORMULAS = "metacount/formulas"


@dataclass(frozen=True)
class Part:
    """Files or folders of the package, and the tests of them; quickest first is found out."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    preload: tuple[str, ...] = ()  # imported once, inherited by every child

    @property
    def sources(self) -> list[Path]:
        """Every file of this part."""
        found: list[Path] = []
        for name in self.files:
            path = ROOT / name
            if not path.exists():
                raise SystemExit(f"teeth: {name} is not there; correct tests/mutation/parts.py")
            found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
        return found


TORCH = ("torch",)
BOTH = ("torch", "transformers")

PARTS = {
    FORMULAS: Part((FORMULAS,), ("tests/formulas",)),
    "metacount/modules": Part(
        ("metacount/modules", "metacount/spec/rope_scaling.py", "metacount/spec/position.py"),
        ("tests/modules", "tests/spec/test_position_parts.py", "tests/verify/test_witnesses.py"),
        BOTH,
    ),
    "metacount/measure": Part(
        ("metacount/measure",),
        (
            "tests/measure",
            "tests/benchmarks/test_measured_counts.py",
            "tests/commands/test_default_workload.py",
            "tests/verify/test_witnesses.py",
            "tests/commands/test_verify.py",
            "tests/huggingface/module/test_forward.py",
            "tests/huggingface/module/test_params.py",
            "tests/views/pictures/test_pictures.py",
        ),
        BOTH,
    ),
    "metacount/tracing": Part(
        ("metacount/tracing",),
        ("tests/tracing",),
        BOTH,
    ),
    "metacount/check": Part(
        ("metacount/check", "metacount/algebra"),
        (
            "tests/check/test_command.py",
            "tests/check/test_file.py",
            "tests/check/test_functions.py",
            "tests/check/test_places.py",
            "tests/check/test_spellings.py",
            "tests/check/test_text.py",
            "tests/check/test_verdict.py",
            "tests/check/test_words.py",
            "tests/check/test_read_rules.py",
            "tests/views/page/test_page.py",
        ),  # not of causes, limits and mutants, which take minutes
    ),
    "metacount/huggingface/config": Part(
        (
            "metacount/huggingface/config",
            "metacount/huggingface/module/positions.py",
        ),
        (
            "tests/huggingface/config/test_config.py",
            "tests/huggingface/config/test_errors.py",
            "tests/huggingface/config/test_published.py",
            "tests/huggingface/config/test_rules.py",
            "tests/huggingface/config/test_saved.py",
            "tests/huggingface/config/test_mutants.py",
            "tests/huggingface/config/test_transformers.py",
        ),
        BOTH,
    ),
    "metacount/huggingface/checkpoint": Part(
        (
            "metacount/huggingface/checkpoint",
            "metacount/huggingface/hub.py",
            "metacount/huggingface/weights",
            "metacount/huggingface/module/witness.py",
            "metacount/files.py",
        ),
        (
            "tests/test_resolve.py",
            "tests/huggingface/module/test_forward.py",
            "tests/huggingface/checkpoint/test_checkpoint.py",
            "tests/huggingface/checkpoint/test_folder.py",
            "tests/huggingface/checkpoint/test_formats.py",
            "tests/huggingface/checkpoint/test_header.py",
            "tests/huggingface/checkpoint/test_hub.py",
            "tests/huggingface/module/test_weights.py",
            "tests/huggingface/module/test_logits.py",
            "tests/huggingface/module/test_minilm.py",
        ),
        BOTH,
    ),
    "metacount/verify": Part(
        (
            "metacount/textbook/proven.py",
            "metacount/textbook/domain.py",
            "metacount/textbook/fingerprints.py",
            "metacount/verify/for_all_sizes.py",
            "metacount/verify/cases.py",
            "metacount/verify/recording.py",
            "metacount/algebra/named_sizes.py",
        ),
        (
            "tests/tracing/test_proof_cases.py",
            "tests/tracing/test_proof_domain.py",
            "tests/tracing/test_proof_record.py",
            "tests/tracing/test_proofs.py",
        ),
        BOTH,
    ),
    "metacount/views/page": Part(
        (
            "metacount/views/page",
            "metacount/views/pictures/quantities.py",
            "metacount/views/bars.py",
            "metacount/textbook/read_rules.py",
            "metacount/textbook/worksheet.py",
            "metacount/textbook/proof_record.py",
            "metacount/textbook/series.py",
            "metacount/commands/plot.py",
            "metacount/output_file.py",
        ),
        (
            "tests/check/test_read_rules.py",
            "tests/views/pictures",
            "tests/views/page",
            "tests/commands/test_bars.py",
            "tests/bench/test_command.py",
        ),
        TORCH,
    ),
    "metacount/spec": Part(
        (
            "metacount/spec",
            "metacount/resolve.py",
            "metacount/settings",
            "metacount/commands/options.py",
        ),
        (
            "tests/spec/test_spec.py",
            "tests/spec/test_law.py",
            "tests/spec/test_legend.py",
            "tests/test_resolve.py",
            "tests/settings/test_settings.py",
            "tests/commands/test_count.py",
            "tests/commands/test_dead_ends.py",
            "tests/test_cli.py",
        ),
    ),
    "metacount/textbook": Part(
        (
            "metacount/textbook/closed_form.py",
            "metacount/textbook/count.py",
            "metacount/units.py",
            "metacount/spec/legend.py",
        ),
        (
            "tests/commands/test_formula.py",
            "tests/commands/test_count.py",
            "tests/test_units.py",
            "tests/spec/test_legend.py",
            "tests/tracing/test_reference_forms.py",
        ),
    ),
    "metacount/commands": Part(
        (
            "metacount/cli.py",
            "metacount/errors.py",
            "metacount/commands/check.py",
            "metacount/commands/claims.py",
            "metacount/commands/count.py",
            "metacount/commands/formula.py",
            "metacount/commands/models.py",
            "metacount/commands/tree.py",
            "metacount/commands/verify.py",
            "metacount/verify/compare.py",
            "metacount/witness.py",
        ),
        (
            "tests/test_cli.py",
            "tests/commands",
            "tests/check/test_command.py",
            "tests/claims/test_command.py",
            "tests/views/test_verify.py",
            "tests/verify/test_witnesses.py",
        ),
        BOTH,
    ),
}

# `Mutant.key` of a mutant that no test can notice, and why.
EQUIVALENT = {
    "metacount/commands/check.py  40 -> 41   in: seconds = float(text[:40])": "a bound on a text",
    "metacount/measure/ours/flops.py  2 ** 22 // sees.n_keys -> 2 ** 22   "
    "in: rows = max(1, 2**22 // sees.n_keys)": "how many rows are laid out at once",
    "metacount/cli.py  done.code or 0 -> 0   "
    'in: return _write("") or int(done.code or 0)': "argparse ends by itself with 0 alone",
    "metacount/cli.py  done.code or 0 -> done.code   "
    'in: return _write("") or int(done.code or 0)': "argparse ends by itself with 0 alone",
}
