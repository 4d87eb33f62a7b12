"""What judges answers may hang, crash, print or run out of memory: the run goes on, and no reward is made up."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from minirl.choices import AnswerFormat
from minirl.config import ConfigError, GradingConfig
from minirl.interfaces import VerifierError
from minirl.tasks.grader import Grader
from minirl.tasks.problems import Problem
from minirl.tasks.verifiers import Verifiers

# each would take hours, or all memory, of the process that computes it
PATHOLOGICAL = [r"9^{9^{9^{9}}}", r"10^{10^{10}}", r"\int_0^1 x^{x^{x^x}} dx"]


def pool(grader: Path | None = None, **changes: float) -> Verifiers:
    settings = {"num_workers": 1, "max_seconds": 1.0, "max_gradings": 1000} | changes
    return Verifiers(grader=None if grader is None else str(grader), **settings)  # type: ignore[arg-type]


@pytest.fixture
def verifiers() -> Iterator[Verifiers]:
    made = pool()
    yield made
    made.close()


def user_file(folder: Path, body: str) -> Path:
    path = folder / "grader.py"
    path.write_text("import os, signal, sys, time\ndef grade(question, answer, response):\n    " + body + "\n")
    return path


def judged(made: Verifiers, response: str = "r") -> float:
    return float(made.ask(question="q", answer="a", response=response))


@pytest.mark.parametrize("answer", PATHOLOGICAL[:2])
def test_an_answer_without_end_is_an_error_and_not_the_last_verdict(verifiers: Verifiers, answer: str) -> None:
    assert verifiers.ask(gold="2", answer="1+1") is True
    with pytest.raises(VerifierError, match=r"more than 1.0 s of CPU|MemoryError|died"):
        verifiers.ask(gold="2", answer=answer)
    assert verifiers.ask(gold="2", answer="1+1") is True
    assert verifiers.ask(gold="2", answer="1+2") is False


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("raise BaseException('beyond Exception')", "beyond Exception"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("sys.exit(0)", "SystemExit"),
        ("os._exit(0)", "died"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died"),
        ("return float('nan')", "the score is nan"),
        ("return 'right'", "could not convert"),
        ("return None", "TypeError"),
        ("return [0] * (1 << 40)", "MemoryError"),
        ("return 1 / 0", "division by zero"),
    ],
)
def test_a_grader_that_fails_gives_no_reward_and_the_next_verdict_is_sound(
    tmp_path: Path, body: str, what: str
) -> None:
    condition = (
        f"if response == 'bad': {body}" if body.startswith("raise") else f"if response == 'bad':\n        {body}"
    )
    made = pool(user_file(tmp_path, f"{condition}\n    return 0.25"))
    for _ in range(2):
        assert judged(made) == 0.25
        with pytest.raises(VerifierError, match=what):
            judged(made, "bad")
    made.close()


def test_a_grader_may_sleep_print_and_read_and_is_given_what_it_is_promised(tmp_path: Path) -> None:
    said = "print('{\"value\": 7}'); sys.stdout.flush()"
    body = f"{said}; return float((question, answer, response) == ('q', 'a', 'r'))"
    made = pool(user_file(tmp_path, body))
    assert judged(made) == 1.0 and judged(made, "other") == 0.0, "what it prints is no verdict"
    made.close()


def test_a_grader_that_waits_for_ever_is_ended_by_the_clock(tmp_path: Path) -> None:
    made = pool(user_file(tmp_path, "time.sleep(3600)"), max_seconds=0.05)
    with pytest.raises(VerifierError, match=r"no verdict within 0.5 s"):
        judged(made)
    made.close()


@pytest.mark.parametrize(
    ("text", "what"),
    [("x = 1", "no function grade"), ("def grade(:", "SyntaxError"), ("import nothing_of_that_name", "nothing_of")],
)
def test_a_file_that_is_no_grader_is_bad_input(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "grader.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"task.grading.grader={path}: .*{what}"):
        pool(path).check()


def test_a_missing_package_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minirl.tasks.verifiers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"task=math needs the package math-verify: pip install minirl\[math\]"):
        pool().check()


def test_a_package_that_does_not_load_is_an_error_of_the_verifier(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = pool()
    for _ in range(2):
        with pytest.raises(VerifierError, match="half installed"):
            made.ask(gold="1", answer="1+0")
    made.close()


def test_processes_are_as_many_as_asked_for_and_replaced_after_so_many_gradings(tmp_path: Path) -> None:
    made = pool(user_file(tmp_path, "time.sleep(0.2); return float(os.getpid())"), num_workers=2, max_gradings=3)
    with ThreadPoolExecutor(6) as threads:
        seen = list(threads.map(lambda _: judged(made), range(12)))
    assert len(set(seen)) == 4 and all(seen.count(process) == 3 for process in seen)
    made.close()


def test_two_slow_gradings_take_the_time_of_one(tmp_path: Path) -> None:
    """By what was going on at once, not by the clock."""
    body = "open(response, 'w').close()\n    while not os.path.exists(answer): time.sleep(0.01)\n    return 1.0"
    made = pool(user_file(tmp_path, body), num_workers=2, max_seconds=20.0)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(made.ask, question="q", answer=theirs, response=mine)
            for mine, theirs in ((first, second), (second, first))
        ]
        assert [each.result() for each in asked] == [1.0, 1.0], "each waited for the other to begin"
    made.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job, which the tests may be, ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_request_that_was_interrupted_leaves_no_verdict_behind(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a verdict: the next question does not get that verdict."""
    made = pool(
        user_file(tmp_path, "time.sleep(0.5 if response == 'slow' else 0)\n    return float(response == 'slow')")
    )
    made.check()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        judged(made, "slow")
    timer.join()
    assert judged(made, "quick") == 0.0
    made.close()


def test_verifiers_end_with_their_owner() -> None:
    program = (
        "from minirl.tasks.verifiers import Verifiers\n"
        "made = Verifiers(num_workers=1, max_seconds=600.0, max_gradings=9, grader=None)\n"
        "made.ask(gold='1', answer='x'); print(made.idle.queue[-1].child.pid, flush=True)\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(done.stdout)
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("a verifier outlives a process that was killed")


def test_errors_are_errors_from_threads_and_asyncio_too() -> None:
    made = Grader(GradingConfig(AnswerFormat.boxed, None, None, num_workers=1, max_seconds=1.0, max_gradings=100))

    def score() -> str:
        try:
            return str(made.score(Problem("", "2"), f"\\boxed{{{PATHOLOGICAL[0]}}}"))
        except VerifierError:
            return "no reward"

    async def inside() -> str:
        return score()

    with ThreadPoolExecutor(1) as threads:
        assert [threads.submit(score).result(), asyncio.run(inside())] == ["no reward"] * 2
    assert made.score(Problem("", "2"), r"\boxed{1+1}") == 1.0
    made.verifiers.close()
