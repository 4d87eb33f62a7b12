"""The program of one verifier process: a JSON object per line in, one per line out. It imports nothing of minirl.

    {"reason": GOLD}                                   -> {"value": null, or why the gold answer cannot be compared}
    {"gold": GOLD, "answer": ANSWER}                   -> {"value": whether they are equal}
    {"question": Q, "answer": GOLD, "response": TEXT}  -> {"value": the score of the user's grader}
    anything that goes wrong                           -> {"error": what}

argv: seconds of CPU for one request (beyond them the kernel ends the process: no answer can keep it), and the path of
the user's grader or nothing.
"""

import json
import logging
import math
import os
import re
import resource
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

MAX_MEMORY_BYTES = 8 << 30  # of addresses: a tower of powers is refused memory instead of taking the machine's
MIXED = re.compile(r"(?<![\d.])(-?\d+)\s+(\d+)\s*/\s*(\d+)(?!\d)")
PERCENT = re.compile(r"\\?%")


def limit_cpu(seconds: float) -> None:
    """SIGXCPU after so many seconds more of this process's CPU time."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(
        resource.RLIMIT_CPU, (math.ceil(spent.ru_utime + spent.ru_stime + seconds), resource.RLIM_INFINITY)
    )


def mathematics() -> Callable[[dict[str, Any]], Any]:
    """What answers requests about pairs of answers, by math-verify."""
    from math_verify import LatexExtractionConfig, parse, verify

    boxed = [LatexExtractionConfig(boxed_match_priority=0)]

    def parsed(text: str) -> list[Any]:
        # LaTeX only: reading plain expressions is an eval of the answer. No signal: the process has its own limits
        text = PERCENT.sub("", MIXED.sub(r"\1\\frac{\2}{\3}", text))
        found: list[Any] = parse(
            f"\\boxed{{{text}}}",
            extraction_config=boxed,
            fallback_mode="no_fallback",
            parsing_timeout=None,
            raise_on_error=True,
        )
        return found

    def equal(gold: list[Any], answer: list[Any]) -> bool:
        # the gold answer first: x = 5 answered by 5 is right, an interval that holds the gold number is not
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))

    def answered(request: dict[str, Any]) -> Any:
        if "reason" in request:
            gold = parsed(request["reason"])
            return None if gold and equal(gold, gold) else "not a mathematical expression that equals itself"
        gold, answer = parsed(request["gold"]), parsed(request["answer"])
        if not answer:
            return False
        shares = [bool(PERCENT.search(request[name])) for name in ("gold", "answer")]
        if shares[0] == shares[1]:
            return equal(gold, answer)
        # one of them is written with a percent sign: 50 % is answered by 50 as much as by 0.5
        scaled = [value / 100 for value in (gold if shares[0] else answer) if hasattr(value, "is_number")]
        return equal(gold, answer) or (equal(scaled, answer) if shares[0] else equal(gold, scaled))

    return answered


def user_grader(path: str) -> Callable[[dict[str, Any]], Any]:
    """The function `grade(question, answer, response) -> float` of a file."""
    spec = spec_from_file_location("user_grader", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    grade = vars(module).get("grade")
    if not callable(grade):
        raise ImportError("it defines no function grade(question, answer, response)")

    def answered(request: dict[str, Any]) -> float:
        score = float(grade(request["question"], request["answer"], request["response"]))
        if not math.isfinite(score):
            raise ValueError(f"the score is {score}")
        return score

    return answered


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")  # what a grader prints goes to stderr, not among the replies
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds, path = float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None

    def reply(kind: str, value: Any) -> None:
        print(json.dumps({kind: value}), file=replies, flush=True)

    try:
        answered = mathematics() if path is None else user_grader(path)
    except BaseException as error:  # whatever a user's file does: it is told and the process ends
        reply("error", f"{type(error).__name__}: {error}")
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, resource.RLIM_INFINITY))
    reply("value", "ready")
    for line in sys.stdin:
        limit_cpu(seconds)
        try:
            reply("value", answered(json.loads(line)))
        except BaseException as error:  # math-verify's own time-outs are no Exceptions; the reply says what it was
            reply("error", f"{type(error).__name__}: {str(error)[:200]}")


if __name__ == "__main__":
    main()
