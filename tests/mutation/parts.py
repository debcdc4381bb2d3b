"""Which tests are run for which part of the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORMULAS = "metacount/formulas"  # the parts whose names begin so are mutated whole


@dataclass(frozen=True)
class Part:
    """Files or folders of the package, and the tests of them; quickest first is found out."""

    files: tuple[str, ...]  # a file may be a pattern
    tests: tuple[str, ...]
    preload: tuple[str, ...] = ()  # imported once, inherited by every child
    without: tuple[str, ...] = ()  # of the folders, the files that another part has

    @property
    def sources(self) -> list[Path]:
        """Every file of this part."""
        left_out = {path for name in self.without for path in _found(name)}
        return [path for name in self.files for path in _found(name) if path not in left_out]


def _found(name: str) -> list[Path]:
    """The files of a folder, of a pattern or of that name."""
    path = ROOT / name
    found = sorted(path.rglob("*.py") if path.is_dir() else ROOT.glob(name))
    if not found:
        raise SystemExit(f"teeth: {name} is not there; correct tests/mutation/parts.py")
    return found


TORCH = ("torch",)
BOTH = ("torch", "transformers")

# of a step of training and of a mesh, each with the tests that measure the same
OF_TRAINING = tuple(f"{FORMULAS}/{name}.py" for name in ("folds", "step", "tape", "trained"))
OF_SHARDING = (f"{FORMULAS}/ranks.py",)

PARTS = {
    FORMULAS: Part(
        (FORMULAS,),
        (
            "tests/formulas",
            "tests/catalog",
            "tests/verify/test_witnesses.py",
            "tests/check/test_shared_block_parts.py",
        ),
        BOTH,
        without=OF_TRAINING + OF_SHARDING,
    ),
    f"{FORMULAS}, of training": Part(
        OF_TRAINING,
        (
            "tests/formulas/test_covered.py",
            "tests/formulas/test_tape.py",
            "tests/formulas/test_modules.py",
            "tests/formulas/test_training.py",
            "tests/training",
        ),
        TORCH,
    ),
    f"{FORMULAS}, of sharding": Part(
        OF_SHARDING,
        ("tests/formulas/test_sharding.py", "tests/sharding"),
        TORCH,
    ),
    "metacount/modules": Part(
        ("metacount/modules", "metacount/spec/position.py"),
        (
            "tests/modules",
            "tests/spec",
            "tests/verify/test_witnesses.py",
            "tests/huggingface/module/test_mixer_layers.py",
            "tests/huggingface/module/test_computes_the_same.py",
        ),
        BOTH,
    ),
    "metacount/measure": Part(
        ("metacount/measure",),
        (
            "tests/measure",
            "tests/flow",
            "tests/commands/test_tree.py",
            "tests/huggingface/module/test_quiet.py",
            "tests/training/test_adam8bit.py",
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
            "tests/algebra",
            "tests/check/test_causes.py",
            "tests/check/test_command.py",
            "tests/check/test_file.py",
            "tests/check/test_functions.py",
            "tests/check/test_places.py",
            "tests/check/test_shared_block_parts.py",
            "tests/check/test_spellings.py",
            "tests/check/test_structure_words.py",
            "tests/check/test_text.py",
            "tests/check/test_verdict.py",
            "tests/check/test_words.py",
            "tests/check/test_zero_experts.py",
            "tests/check/test_read_rules.py",
        ),  # not of limits and mutants, which take minutes
    ),
    "metacount/huggingface/config": Part(
        (
            "metacount/huggingface/config",
            "metacount/huggingface/module/positions.py",
        ),
        ("tests/huggingface/config",),
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
            "tests/huggingface/checkpoint",
            "tests/formats/test_gguf.py",
            "tests/huggingface/module/test_computes_the_same.py",
            "tests/huggingface/module/test_weights.py",
            "tests/huggingface/module/test_logits.py",
            "tests/huggingface/module/test_minilm.py",
        ),
        BOTH,
    ),
    "metacount/verify": Part(
        (
            "metacount/textbook/proven.py",
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
            "tests/verify",
            "tests/views/test_verify.py",
        ),
        BOTH,
    ),
    "metacount/training": Part(
        ("metacount/training", "metacount/textbook/training.py"),
        ("tests/formulas/test_training.py", "tests/training"),
        BOTH,
    ),
    "metacount/sharding": Part(
        ("metacount/sharding",),
        ("tests/sharding",),
        TORCH,
    ),
    "metacount/formats": Part(("metacount/formats",), ("tests/formats",), TORCH),
    "metacount/flow": Part(("metacount/flow",), ("tests/flow",), BOTH),
    "metacount/cli/page": Part(
        (
            "metacount/cli/page.py",
            "metacount/cli/pictures.py",
            "metacount/cli/layout.py",
            "metacount/textbook/read_rules.py",
            "metacount/textbook/worksheet.py",
            "metacount/textbook/series.py",
            "metacount/cli/plot.py",
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
            "metacount/cli/options.py",
        ),
        (
            "tests/spec",
            "tests/test_resolve.py",
            "tests/settings",
            "tests/commands/test_count.py",
            "tests/commands/test_models.py",
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
            "tests/commands/test_json_shapes.py",
            "tests/commands/test_prediction.py",
            "tests/formulas/test_sizes_and_layers.py",
            "tests/test_units.py",
            "tests/textbook",
            "tests/spec/test_legend.py",
            "tests/tracing/test_reference_forms.py",
        ),
    ),
    "metacount/cli": Part(
        (
            "metacount/cli/__init__.py",
            "metacount/errors.py",
            "metacount/cli/check.py",
            "metacount/cli/claims.py",
            "metacount/cli/count.py",
            "metacount/cli/formula.py",
            "metacount/cli/models.py",
            "metacount/cli/tree.py",
            "metacount/cli/verify.py",
            "metacount/verify/compare.py",
            "metacount/witness.py",
        ),
        (
            "tests/test_cli.py",
            "tests/commands",
            "tests/check/test_command.py",
            "tests/teaching/test_claims.py",
            "tests/views/test_verify.py",
            "tests/verify/test_witnesses.py",
        ),
        BOTH,
    ),
}
