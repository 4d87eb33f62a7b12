"""What the pre-flight says of a claim before the runs is what the report says after them."""

from sweep_in_memory import arm, evaluations, run, sweep

from minirl.report.claims import evaluate
from minirl.report.findings import Verdict
from minirl.sweep.expand import Arm, Design
from minirl.sweep.preflight import undecidable

COLLAPSED = {"text": "C", "arms": ["A", "B"], "relation": "collapsed"}
EQUAL = {"metric": "eval/avg", "arms": ["B", "C"], "relation": "greater"}


def test_the_note_is_right_about_the_verdict() -> None:
    """Six claims are the most among which five seeds against none are decisive whatever the other claims show."""
    down, up = evaluations([0.5, 0.9, 0.1, 0.1]), evaluations([0.5, 0.6, 0.6, 0.6])
    arms = [
        arm("A", [run(seed, down) for seed in range(5)]),
        arm("B", [run(seed, up) for seed in range(5)]),
        arm("C", [run(seed, up) for seed in range(5)]),
    ]
    for others, verdict in ((5, Verdict.reproduced), (6, Verdict.undecided)):
        claims = [COLLAPSED, *[EQUAL | {"text": str(i)} for i in range(others)]]
        planned = Design(
            "f", "F", "toy", (), (), tuple(Arm(name, ()) for name in "ABC"), (0, 1, 2, 3, 4), tuple(claims), (), ()
        )
        assert evaluate(sweep(arms, claims))[0].verdict == verdict
        assert bool(undecidable(planned, {})) == (verdict == Verdict.undecided)
