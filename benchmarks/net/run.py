"""Runs every row of the net, and says which answers are not what they were.

    python benchmarks/net/run.py                         # all rows; the texts go into a folder
    python benchmarks/net/run.py analytic --only gpt2    # rows of one file that match a pattern
    python benchmarks/net/run.py --check                 # against digests.txt; 1 if any differs
    python benchmarks/net/run.py --save                  # digests.txt anew
    python benchmarks/net/run.py --against OLD           # a folder of an earlier run, or a revision

A row is a command line, or after `>>> ` an expression of Python with `metacount` and the functions
of figures.py. `@80 ` before it is the width of the screen; `<a|b>` stands for a row with a and one
with b, `<$NAME>` for the values of a line `NAME = a|b`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import logging
import multiprocessing
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DIGESTS = HERE / "digests.txt"
GROUPS = ("numbers", "measured", "analytic")  # files of rows; what takes longest first
PROCESSES = 2
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?![\w.])")
SHOWN = 3  # lines of either side that differ, of each row
# What an answer must not depend on.
ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
PLAIN = (str, int, float, type(None))  # what a list may have on one line

Answers = dict[str, str]  # by row


# ---- rows


def expanded(row: str, lists: dict[str, str]) -> list[str]:
    """Every row that a row stands for."""
    found = re.search(r"<([^<>]*)>", row)
    if found is None:
        return [row]
    words = re.sub(r"\$([A-Z_]+)", lambda name: lists[name[1]], found[1]).split("|")
    ends = row[: found.start()], row[found.end() :]
    return [full for word in words for full in expanded(word.join(ends), lists)]


def rows_of(group: str) -> list[str]:
    """The rows of one file; runs in a process of the package that is asked."""
    import figures

    lists = {"IDS": "|".join(figures.ids()), "STRUCTURES": "|".join(figures.structures())}
    rows: list[str] = []
    for line in (HERE / f"{group}.txt").read_text("utf-8").splitlines():
        if named := re.fullmatch(r"([A-Z_]+) = (.*)", line):
            lists[named[1]] = named[2]
        elif line.strip() and not line.startswith("#"):
            rows += expanded(line, lists)
    return list(dict.fromkeys(rows))


def kind_of(row: str) -> str:
    """The command of a row, or the function."""
    return re.split(r"[ (]", re.sub(r"^(@\d+|>>>) (metacount\.)?", "", row))[0]


# ---- one row


def begin(root: str, inputs: str) -> None:
    """Make a process ready to answer rows with the package below `root`."""
    os.environ.update(ENVIRONMENT, HF_HOME=f"{inputs}/no-hub")
    sys.path[:0] = [root]
    folder = tempfile.mkdtemp(dir=os.path.dirname(inputs))
    shutil.copytree(inputs, folder, dirs_exist_ok=True)
    os.chdir(folder)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import metacount

    assert metacount.__file__.startswith(root), (metacount.__file__, root)


def answered(row: str) -> tuple[str, float]:
    """The text of a row's answer, and the seconds that it computed."""
    start = time.process_time()
    before = set(os.listdir())
    width, asked = re.fullmatch(r"(?:@(\d+) )?(.*)", row).groups()  # type: ignore[union-attr]
    os.environ["COLUMNS"] = width or "100"
    try:
        text = result_of(asked[4:]) if asked.startswith(">>> ") else printed_by(asked)
    except Exception as error:  # a crash is an answer like any other: it must not be new
        text = f"crashed: {type(error).__name__}: {error}\n"
    for name in sorted(set(os.listdir()) - before):
        file = Path(name)
        if file.is_file():
            data = file.read_bytes()
            text += f"--- {name}\n{data.decode('utf-8', 'backslashreplace')}\n"
            file.unlink()
    return steady(text), time.process_time() - start


def printed_by(line: str) -> str:
    """What a command line writes, and its exit code."""
    from metacount import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(shlex.split(line))
    progress = re.sub(r"\b[\d.]+ m?s\b", "SOME TIME", re.sub(r"[^\n]*\r", "", err.getvalue()))
    text = f"exit {code}\n--- stdout\n{out.getvalue()}--- stderr\n{progress}"
    text = re.sub(r'("seconds": )[\d.]+', r"\1SOME TIME", text)
    if re.match("claims|lesson", line):  # how far sums are off by rounding, of another order each
        text = re.sub(r"\b\d(\.\d+)?e-1[2-7]\b", "ROUNDING", text)
    if "--dry-run" in line:  # an estimate of what this machine takes
        text = re.sub(r" *\b[\d.,]+ (µs|ms|s|min|h|TFLOP/s|GB/s)(?!\w)", " SOME TIME", text)
    return text


def result_of(expression: str) -> str:
    """The result of an expression, a line for each value in it."""
    import figures

    import metacount

    names = {name: value for name, value in vars(figures).items() if not name.startswith("_")}
    try:
        result = eval(expression, {**names, "metacount": metacount})
    except (metacount.InputError, metacount.SpecError) as error:
        return f"{type(error).__name__} of {getattr(error, 'field', 'the request')}: {error}\n"
    return "\n".join(lines_of(result)) + "\n"


def lines_of(data: Any, path: str = "") -> Iterator[str]:
    """Nested data as lines of a path and a value."""
    if hasattr(data, "to_dict"):
        data = data.to_dict()
    elif type(data).__module__.partition(".")[0] == "metacount" and not isinstance(data, tuple):
        data = vars(data)
    if isinstance(data, Iterator):
        for part in data:
            yield from lines_of(part, path)
    elif isinstance(data, dict) and data:
        for name, value in data.items():
            yield from lines_of(value, f"{path} {name}".strip())
    elif isinstance(data, list | tuple) and not all(isinstance(v, PLAIN) for v in data):
        for number, value in enumerate(data):
            yield from lines_of(value, f"{path} {number}".strip())
    else:
        yield f"{path} {data if isinstance(data, str) else repr(data)}".strip()


def steady(text: str) -> str:
    """A text without the folders of this machine."""
    for folder, name in (
        (os.getcwd(), "HERE"),
        (str(sys.path[0]), "PACKAGE"),
        (sysconfig.get_paths()["purelib"], "SITE"),
    ):
        text = text.replace(os.path.realpath(folder), name).replace(folder, name)
    return text


# ---- many rows


def write_inputs(folder: Path) -> None:
    """The files that rows name: those of inputs/, and some that are no text."""
    sys.path.append(str(ROOT / "tests"))
    import numpy
    from helpers import gguf_files
    from safetensors.numpy import save_file

    shutil.copytree(HERE / "inputs", folder)
    for topic in ("ffn", "attention"):
        shutil.copy(ROOT / "benchmarks" / "results" / f"{topic}.jsonl", folder)
    for name in ("llama", "qwen3moe", "gemma2"):
        gguf_files.written(folder / f"{name}.gguf", name)
    whole = (folder / "llama.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(whole[:100])
    (folder / "old.gguf").write_bytes(b"GGUF" + struct.pack("<I", 1) + whole[8:])
    for name, width in (("checkpoint", 17), ("other-checkpoint", 19)):
        shutil.copytree(folder / "llama", folder / name)
        shapes = {"model.embed_tokens": (101, 12), "lm_head": (101, 12), "model.norm": (12,)}
        for n in range(3):
            block = f"model.layers.{n}"
            shapes |= {f"{block}.self_attn.{x}_proj": (12, 12) for x in "qo"}
            shapes |= {f"{block}.self_attn.{x}_proj": (4, 12) for x in "kv"}
            shapes |= {f"{block}.mlp.{x}_proj": (width, 12) for x in ("gate", "up")}
            shapes[f"{block}.mlp.down_proj"] = (12, width)
            shapes |= {f"{block}.{x}_layernorm": (12,) for x in ("input", "post_attention")}
        zeros = {f"{x}.weight": numpy.zeros(shape, "float16") for x, shape in shapes.items()}
        save_file(zeros, folder / name / "model.safetensors")


def run(
    root: Path,
    groups: Sequence[str] = GROUPS,
    *,
    only: str = "",
    sample: tuple[str, int] | None = None,
    shuffle: str | None = None,
) -> tuple[Answers, dict[str, float]]:
    """Answer rows with the package below `root`: the texts, and the seconds that each took.

    `sample`: so many of the rows, chosen by a day. `shuffle`: in an order by this seed.
    """
    answers, seconds = {}, {}
    os.environ["PYTHONHASHSEED"] = str(zlib.crc32((shuffle or "").encode()))  # the order of sets
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary) / "inputs"
        write_inputs(inputs)
        pool = ProcessPoolExecutor(
            PROCESSES,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=begin,
            initargs=(str(root), str(inputs)),
        )
        with pool:
            rows = [row for group in groups for row in pool.submit(rows_of, group).result()]
            rows = [row for row in rows if re.search(only, row)]
            if sample is not None:
                day, number = sample
                rows = sorted(rows, key=lambda row: zlib.crc32(f"{day} {row}".encode()))[:number]
            if shuffle is not None:
                random.Random(shuffle).shuffle(rows)
            futures = {pool.submit(answered, row): row for row in rows}
            for done in as_completed(futures):
                answers[futures[done]], seconds[futures[done]] = done.result()
    return answers, seconds


def file_of(folder: Path, row: str) -> Path:
    """The file of a row's answer."""
    name = re.sub(r"[^\w.=,-]+", "_", row).strip("_")[:80]
    return folder / f"{name}-{zlib.crc32(row.encode()):08x}.txt"


def digest(text: str) -> str:
    """Twelve letters for a text."""
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def versions() -> str:
    """What answers depend on besides the package, the first line of digests."""
    python = ".".join(map(str, sys.version_info[:2]))
    names = ("torch", "transformers", "matplotlib", "sympy", "gguf")
    return ", ".join([f"# Python {python}", *(f"{name} {version(name)}" for name in names)])


def read_digests(file: Path) -> dict[str, str]:
    """Digests by row; none where there is no file."""
    lines = file.read_text("utf-8").splitlines()[1:] if file.exists() else []
    return {line[14:]: line[:12] for line in lines}


def write_digests(file: Path, digests: dict[str, str]) -> None:
    lines = [versions(), *(f"{digests[row]}  {row}" for row in sorted(digests))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- two runs


def differences(old: Answers, new: Answers) -> Iterator[str]:
    """A few lines for each row that has another answer now."""
    for row in sorted({*old, *new}):
        if row not in old or row not in new:
            yield f"{row}\n    {'gone' if row in old else 'new'}"
        elif old[row] != new[row]:
            before, after = old[row].splitlines(), new[row].splitlines()
            known_before, known_after = set(before), set(after)
            less = [f"- {line}" for line in before if line not in known_after]
            more = [f"+ {line}" for line in after if line not in known_before]
            few = [*less[:SHOWN], *more[:SHOWN]] or ["other order"]
            rest = len(less + more) - len(few)
            if rest > 0:
                few.append(f"... {rest} lines more")
            yield "\n    ".join([row, *(line[:200] for line in few)])


def answers_of(old: str, groups: Sequence[str], only: str) -> Answers:
    """The answers of an earlier run's folder, or of a revision, which is run now."""
    if Path(old).is_dir():
        rows = read_digests(Path(old) / DIGESTS.name)
        texts = {row: file_of(Path(old), row).read_bytes().decode() for row in rows}
        return {row: text.partition("\n")[2] for row, text in texts.items()}
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", tree, old], check=True, capture_output=True)
        try:
            return run(tree, groups, only=only)[0]
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def write(folder: Path, answers: Answers, seconds: dict[str, float]) -> None:
    """Write a run: a file for each row, all digests, and what took longest."""
    folder.mkdir(parents=True, exist_ok=True)
    for row, text in answers.items():
        file_of(folder, row).write_bytes(f"{row}\n{text}".encode())
    write_digests(folder / DIGESTS.name, {row: digest(text) for row, text in answers.items()})
    slow = sorted(seconds, key=lambda row: -seconds[row])
    times = "".join(f"{seconds[row]:8.2f}  {row}\n" for row in slow)
    (folder / "seconds.txt").write_text(times, encoding="utf-8")


def main() -> int:
    """Run the rows that are asked for; 1 where an answer is not what it was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)}; or all")
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows that match it")
    parser.add_argument("--sample", nargs=2, metavar=("DAY", "N"), help="N rows, chosen by a day")
    parser.add_argument("--shuffle", metavar="SEED", help="in another order")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the texts")
    parser.add_argument("--against", metavar="OLD", help="a folder, or a revision of git")
    parser.add_argument("--save", action="store_true", help="write digests.txt")
    parser.add_argument("--check", action="store_true", help="compare with digests.txt")
    args = parser.parse_args()
    if set(args.groups) - set(GROUPS):
        parser.error(f"a group is one of {', '.join(GROUPS)}")
    sample = (args.sample[0], int(args.sample[1])) if args.sample else None
    groups = args.groups or GROUPS
    every = set(groups) == set(GROUPS) and not args.only and sample is None
    answers, seconds = run(ROOT, groups, only=args.only, sample=sample, shuffle=args.shuffle)
    out = args.out or Path(tempfile.mkdtemp(prefix="net-"))
    write(out, answers, seconds)
    print(f"{'':>12}  rows  whole numbers  seconds of one core")
    for kind in sorted({*map(kind_of, answers)}):
        rows = [row for row in answers if kind_of(row) == kind]
        numbers = sum(len(NUMBER.findall(answers[row])) for row in rows)
        print(f"{kind:>12} {len(rows):5} {numbers:14,} {sum(seconds[row] for row in rows):20.0f}")
    print(f"{len(answers)} rows, {sum(seconds.values()):.0f} seconds; the texts are in {out}")
    digests = {row: digest(text) for row, text in answers.items()}
    saved = read_digests(DIGESTS)
    if args.save:
        write_digests(DIGESTS, digests if every else {**saved, **digests})
    found: list[str] = []
    if args.check:
        asked = {*saved, *digests} if every else {*digests}
        found += [row for row in sorted(asked) if saved.get(row) != digests.get(row)]
    if args.against:
        old = answers_of(args.against, groups, args.only)
        found += differences({row: old[row] for row in old if every or row in answers}, answers)
    for line in found:
        print(line)
    if args.check or args.against:
        print(f"{len(found)} rows differ" if found else "no difference")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
