"""Limits hold for whatever is given: texts, functions of a file, functions of the caller."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from helpers import judged_functions, one_line
from helpers.processes import still_running
from helpers.release import daily, one_day_in, one_in

import metacount
from metacount import InputError, Workload, find_model
from metacount.algebra.limits import TooLong, limited
from metacount.check import Judgement
from metacount.check.given.process import answer_of
from metacount.check.verdict import judged_file

LLAMA = "2*V*d + d + N*(2*d*h_d*(h + h_kv) + 3*d*m + 2*d)"
# 36 characters that took SymPy 285 seconds
SLOW = "((d+N)/(m+h)+(V+1)/(S+d))**4*1/(d-N)"


def forever() -> None:
    while True:
        pass


# A program, and what it prints: a limit within a weakref's callback, whose error would go to stderr
# alone, comes again; a limit in a thread leaves a function that is traced afterwards alone.
CALLBACK = """
thing = Thing()
reference = weakref.ref(thing, slow)
try:
    with limited(0.1):
        del thing
        time.sleep(30)
except TooLong:
    print("ended")
"""
THREAD = """
def work():
    for _ in range(20):
        try:
            with limited(0.01):
                BLOCK
        except TooLong:
            pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.settrace(lambda *_: None)
print(sum(traced(n) for n in range(1000)))
"""
BEFORE = """
import sys, threading, time, weakref
from metacount.algebra.limits import TooLong, limited
class Thing: pass
def slow(_reference):
    until = time.monotonic() + 0.3
    while time.monotonic() < until: pass
def traced(n):
    return n + 1
"""
PROGRAMS = [(CALLBACK, "ended")]
PROGRAMS += [(THREAD.replace("BLOCK", each), "500500") for each in ("pass", "while True: pass")]


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_a_limit_in_an_odd_place_ends_and_leaves_nothing(program: str, printed: str) -> None:
    command = [sys.executable, "-c", BEFORE + program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{printed}\n", "")


@one_day_in(4)
def test_a_text_that_letters_cannot_take_is_judged_by_numbers() -> None:
    result = metacount.check(SLOW, "llama-7b", timeout=4)
    assert result.verdict == "wrong" and result.theirs is None
    # at the model's sizes, exactly
    exact = (Fraction(4096 + 32, 11008 + 32) + Fraction(32001, 2048 + 4096)) ** 4 / (4096 - 32)
    assert result.theirs_value == exact
    right = metacount.check(f"{LLAMA} + 0*({SLOW})", "llama-7b", quantity="params", timeout=4)
    assert right.verdict in ("equal_where_tried", "untried")


@pytest.mark.parametrize("thread", [False, True])
def test_a_limit_ends_a_loop_and_what_swallows_it(thread: bool) -> None:
    ended = []

    def work() -> None:
        with pytest.raises(TooLong), limited(0.3):
            try:
                forever()
            except BaseException:
                forever()
        ended.append(True)
        with limited(5):  # and it is over: nothing arrives later
            time.sleep(0.5)

    if thread:
        runner = threading.Thread(target=work)
        runner.start()
        runner.join(20)
    else:
        work()
    assert ended == [True]


ERRORS = (SystemExit(0), GeneratorExit(), BaseException("x"), RecursionError("deep"), MemoryError())


@pytest.mark.parametrize("error", [None, *ERRORS])
def test_a_function_of_the_caller_ends_in_one_line(error: BaseException | None) -> None:
    def mine(d_model: Any) -> Any:
        if error is not None:
            raise error
        time.sleep(60)

    said = "mine: " if error is not None else "mine: stopped after 1 s"
    with pytest.raises(InputError, match=said):
        metacount.check(mine, "llama-7b", timeout=60 if error is not None else 1)


def test_an_exit_at_other_sizes_does_not_end_the_caller() -> None:
    def mine(cfg: Any) -> Any:
        return judged_functions.right(cfg) if cfg.d_model == 4096 else sys.exit(3)

    result = metacount.check(mine, "llama-7b", timeout=60)
    assert (result.verdict, result.holds) == ("equal_here", False)
    assert result.condition is not None and result.condition.startswith("d_model = 4096 ")


# ---- functions of a file: what they say, and that nothing they do gets out of their process


SIZES = "d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size"
GOOD = f"""
def whole({SIZES}):
    block = 2*d_model*head_dim*(n_heads + n_kv_heads) + 3*d_model*d_ff + 2*d_model
    return n_layers*block + d_model + 2*vocab_size*d_model
"""


def of_sizes(result: str) -> str:
    """A file with a function of LLaMA's sizes, which returns something made of the right n."""
    return f"{GOOD}\ndef f({SIZES}):\n    n = whole({SIZES})\n    return {result}\n"


def judge(folder: Path, text: str, *, model: str = "llama-7b", timeout: float = 20) -> Judgement:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    found = find_model(model)
    case = (found.spec, Workload())
    return judged_file(str(folder / "mine.py"), "f", found, case, "params", timeout=timeout)


def test_foreign_names_defaults_an_object_and_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("TWO = 2\n")
    text = GOOD.replace("2*vocab_size", "TWO*vocab_size") + (
        "from beside import TWO\n"
        "def f(config, scale=1, *, head_dim=None, **rest):\n"
        "    assert 'num_hidden_layers' in config and config.get('n_experts') is None\n"
        "    head_dim = head_dim or config.hidden_size // config.n_heads\n"
        "    assert not config.tie_word_embeddings\n"
        "    return whole(config['hidden_size'], config.num_hidden_layers, config.n_head,\n"
        "                 config.num_key_value_heads, head_dim, config.intermediate_size,\n"
        "                 config.vocab_size)*scale\n"
    )
    result = judge(tmp_path, text)
    assert result.verdict == "equal" and result.theirs is not None
    assert result.theirs_value == 6_738_415_616
    assert result.notes == ("scale keeps its default, 1",)


@daily(4)
@pytest.mark.parametrize(
    ("returned", "verdict", "terms"),
    [
        ("n*1.0", "equal", []),
        ("int(n)", "equal_where_tried", []),
        # 32000·4096
        ("int(n - vocab_size*d_model)", "wrong", [-131_072_000]),
        ("int(2*n)", "wrong", [6_738_415_616]),
        ("8/3*d_model", "wrong", []),
    ],
)
def test_what_a_function_returns(
    returned: str, verdict: str, terms: list[int], tmp_path: Path
) -> None:
    result = judge(tmp_path, of_sizes(returned))
    assert result.verdict == verdict
    if verdict == "equal_where_tried":
        assert result.theirs is None and result.tried == result.planned > 500
    if terms:
        assert [(term.value, term.known) for term in result.terms] == [(terms[0], True)]
    floats = "the function returns floats; they are exact for whole numbers up to 2^53 only"
    assert (floats in result.notes) == ("int" not in returned)


def test_a_branch_that_letters_do_not_take(tmp_path: Path) -> None:
    # LLaMA-3 has fewer key/value heads than heads: only other sizes take the wrong branch
    result = judge(tmp_path, of_sizes("1 if n_heads == n_kv_heads else n"), model="llama3-8b")
    assert result.verdict == "equal_here"
    counter = result.counterexample
    assert counter is not None and counter.theirs == 1
    assert counter.sizes["n_heads"] == counter.sizes["n_kv_heads"]


@daily(5)
@pytest.mark.parametrize(
    ("text", "said"),
    one_in(
        2,
        [
            ("def g(d_model): return 1", "has no function 'f'; it has g"),
            ("f = 3", "has no function 'f'; it has no function"),
            ("def f(:", "mine.py, line 1: is not Python"),
            ("raise OSError('x')", "raised OSError when it was loaded: x"),
            ("raise SystemExit", "raised SystemExit when it was loaded"),
            ("def f(frobs): return 1", "the argument 'frobs' is no size that is known here"),
            ("def f(n_experts): return 1", "the argument n_experts: llama-7b has no n_experts"),
            ("def f(d, /): return 1", "d can only be given by position"),
            ("def f(config): return config.frobs", "raised AttributeError .* 'frobs' is no size"),
            ("def f(cfg): return cfg['n_experts']", "raised KeyError .* llama-7b has no n_experts"),
        ],
    ),
)
def test_what_cannot_be_called_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        judge(tmp_path, text)


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (["{'text': 'mine'}", '{"ended": 0}'], None),
        (['{"text": "ours"}', '{"ended": 0}'], "ours"),  # both before anybody reads
        (['{"text": "ours"}', '{"text": "mine"}'], None),
    ],
)
def test_an_answer_and_the_end_of_its_process_may_come_together(
    lines: list[str], answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "server.py").write_text(f"import os\nos.write(1, {text!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    if answer is None:
        with pytest.raises(InputError, match="wrote over"):
            answer_of("{}", "mine.py:f", 20, "server")
    else:
        assert answer_of("{}", "mine.py:f", 20, "server") == {"text": answer}


# Before each body; `left` notes a process that must not live on.
START = """
import atexit, builtins, contextlib, ctypes, gc, json, os, re, resource, signal, socket
import subprocess, sys, threading, time
def left(pid):
    with open("pids", "a") as file: file.write(f"{pid}\\n")
def sleeper(**how): left(subprocess.Popen(["sleep", "77"], **how).pid)
def forever():
    while True: pass
class Odd(BaseException):
    def __str__(self): raise Odd
class Number(int):
    def __abs__(self): forever()
class Index:
    def __init__(self, act): self.act = act
    def __index__(self): return self.act()
class Freed:
    def __del__(self): forever()
def forked(act):
    if (pid := os.fork()) == 0:
        act()
        os._exit(0)
    return pid
def asleep():
    left(os.getpid())
    time.sleep(77)
def alone():
    os.setsid()
    asleep()
def chain(n=5):
    left(os.getpid())
    if n and os.fork() == 0: chain(n - 1)
    time.sleep(77)
def stranger():
    if (pid := os.fork()) == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {})
    left(pid)
def f(d_model):
"""
# What it does beside returning its argument: nothing of it is left.
LEAVES = [
    "sleeper()",
    "sleeper(start_new_session=True, close_fds=False)",
    "sleeper(env={}, start_new_session=True, cwd='/')",
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN); sleeper()",
    "forked(asleep)",
    "forked(alone)",
    "forked(chain)",
    "os.waitpid(forked(stranger), 0)",
    "os.fork() or left(os.getpid())",
    "[os.kill(os.getppid(), n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]",
    "threading.Thread(target=time.sleep, args=(77,)).start()",
    "threading.Thread(target=lambda: [print('x' * 999) for _ in range(10**9)]).start()",
    "atexit.register(time.sleep, 77)",
    "os._exit = lambda code: None",
    "sys.stdout.close(); sys.stderr.close()",
    "print('x' * 10**6); os.write(1, b'{}')",
    "sys.stdin.read()",
    "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "socket.create_server(('127.0.0.1', 0)).listen()",
    "gc.disable(); gc.set_threshold(1); gc.freeze()",
    "sys.excepthook = sys.unraisablehook = forever",
]
STOPPED = "stopped after 2 s"
AGAIN = "while True:\n        "
SAID = [
    ("left(os.getpid()); [signal.signal(n, signal.SIG_IGN) for n in (2, 14, 15)]; forever()", ""),
    (f"left(os.getpid())\n    {AGAIN}with contextlib.suppress(BaseException): time.sleep(1)", ""),
    ("left(os.getpid()); os.kill(os.getpid(), signal.SIGSTOP)", ""),
    ("Freed()", ""),
    (f"{AGAIN}sys.stdout.write('x' * 10_000)", ""),
    ("lock = threading.Lock(); lock.acquire(); lock.acquire()", ""),
    ("re.match('(a+)+$', 'a' * 40 + 'b')", ""),
    ("os.execv('/bin/sleep', ['sleep', '77'])", ""),
    ("return Index(forever)", ""),
    ("return Number(d_model)", ""),
    ("raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    ("raise Odd", "raised Odd"),
    ("raise SystemExit(0)", "ended the process"),
    ("raise ValueError('no\\n\\x1b[31mno')", r"raised ValueError .*: no\\n\\x1b\[31mno"),
    ("return f(d_model)", "raised RecursionError"),
    ("return 1/0", "raised ZeroDivisionError at the sizes of the model: division by zero"),
    ("return Index(lambda: 1/0)", "raised ZeroDivisionError"),
    ("os.closerange(0, 100)", "without an answer"),
    ("os._exit(3)", "ended with exit code 3 and without an answer"),
    ("os.execv('/bin/true', ['true'])", "with exit code 0 and without an answer"),
    ("os.abort()", "ended by signal 6"),
    ("os.killpg(0, signal.SIGKILL)", "ended by signal 9"),
    ("os.kill(os.getppid(), signal.SIGKILL); forever()", "ended by signal 9"),
    ("ctypes.string_at(0)", "ended by signal 11"),
    ("file = open('large', 'wb')\n    while True: file.write(b'x' * 2**20)", "raised OSError"),
    ("return len([0]*10**11)", "ran out of memory"),
    ("json.dumps = lambda *_, **__: '{}'", "wrote over the answer"),
    ("json.dumps = lambda *_, **__: 'x' * 2**25", "wrote over the answer|too long"),
    ("[os.write(n, b'[]\\n') for n in (3, 4) if os.path.exists(f'/proc/self/fd/{n}')]", "over the"),
    ("return None", "returned None; return a number"),
    ("return 'seven'", "returned a str; return a number"),
    ("return float('inf')", "returned inf"),
    ("return 10**10**4", "a number of more than 2000 bits"),
]


@daily(9)
@pytest.mark.parametrize(
    ("body", "said"),
    one_in(4, [*((body, None) for body in LEAVES), *((a, b or STOPPED) for a, b in SAID)]),
)
def test_it_ends_in_time_with_all_it_started(
    body: str, said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"{START}    {body}\n    return d_model\n", encoding="utf-8")
    model = find_model("llama-7b")
    # a quiet machine answers in 1 s; a loaded one takes a while to start a process
    given = ("mine.py", "f", model, (model.spec, Workload()), "params")
    if said is None:
        assert judged_file(*given, timeout=60).theirs_value == 4096
    else:
        with pytest.raises(InputError, match=said) as error:
            judged_file(*given, timeout=2 if said == STOPPED else 60)
        assert one_line(error.value).isprintable() and "mine.py:f" in one_line(error.value)
    pids = tmp_path / "pids"
    assert still_running(map(int, pids.read_text().split()) if pids.exists() else ()) == []
