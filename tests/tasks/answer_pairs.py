r"""Gold answers, responses and what a careful person would give them: (gold, response, reward) by format."""
# ruff: noqa: E501  a line of the table may be as long as its answers

# (gold, boxed answer): equal as mathematics
EQUAL = [
    ("5", "5"), ("5", " 5 "), ("5", "5."), ("5", "5.0"), ("5", "05"), ("5", "+5"), ("+7", "7"), ("-3", "-3"),
    ("-3", "−3"), ("-3", "- 3"), ("1234", "1,234"), ("1,234", "1234"), ("1234567", "1,234,567"), ("1000", "1{,}000"),
    ("10", "10.00"), ("0.5", ".5"), ("0.5", r"\frac{1}{2}"), (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", "1/2"),
    (r"\frac{1}{2}", r"\dfrac{1}{2}"), (r"\frac{1}{2}", r"\tfrac12"), (r"\frac{1}{2}", r"\frac{2}{4}"), ("3/4", "0.75"),
    (r"-\frac{3}{4}", r"\frac{-3}{4}"), (r"-\frac{3}{4}", "-0.75"), (r"\frac{3}{2}", "1 1/2"), (r"\frac{3}{2}", r"1\frac{1}{2}"),
    (r"2\frac{1}{2}", "2.5"), ("50\\%", "50\\%"), ("50\\%", "50"), ("50\\%", "0.5"), ("0.5", "50\\%"), ("12.5\\%", "12.5%"),
    ("$18", "18"), ("18", r"\$18"), (r"\$18.90", "18.90"), ("5", r"5\text{ cm}"), ("5 \\text{ cm}", "5"), ("90^\\circ", "90"),
    ("90", "90^\\circ"), ("90^\\circ", "90 degrees"), ("6", r"6\text{ units}^2"), (r"\sqrt{2}", r"2^{1/2}"),
    (r"\sqrt{8}", r"2\sqrt{2}"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\pi", r"\pi"), (r"\frac{\pi}{2}", r"0.5\pi"), (r"3\pi", r"\pi \cdot 3"), ("e^{2}", "e^2"), (r"\ln 2", r"\ln(2)"),
    (r"\log_2 8", "3"), ("2^{10}", "1024"), ("10!", "3628800"), (r"\binom{5}{2}", "10"), ("3+4i", "4i+3"), ("i", "i"),
    ("x+1", "1+x"), ("(x+1)^2", "x^2+2x+1"), ("p-q", "-q+p"), (r"\frac{x}{2}", "0.5x"), ("2x", r"2\cdot x"), ("x^2-1", "(x-1)(x+1)"),
    ("5", "x=5"), ("x=5", "5"), ("5", "n = 5"), ("y=2x+1", "y = 1 + 2x"), ("x=5", "x = 5"), ("x<5", "x<5"),
    ("(1,2)", "(1, 2)"), (r"\left(1,2\right)", "(1,2)"), (r"(3,\frac{\pi}{2})", r"\left(3, \frac{\pi}{2}\right)"),
    (r"\{1,2,3\}", r"\{3,2,1\}"), ("1,2,3", "3, 2, 1"), (r"\{1,2\}", "1, 2"), ("[0,1]", "[0, 1]"), ("[0,1)", r"\left[0,1\right)"),
    (r"(-\infty,3]", r"(-\infty, 3]"), (r"(0,1)\cup(2,3)", r"(2,3) \cup (0,1)"), ("3, -3", r"\pm 3"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"\text{Evelyn}", "Evelyn"), (r"\text{even}", r"\text{Even}"), ("odd", r"\textbf{odd}"), (r"\text{(C)}", "(C)"),
    ("10:05", "10:05"), (r"\emptyset", r"\emptyset"), ("204", r"\mathbf{204}"), ("204", r"\boxed{204}"), ("73", "073"),
    ("0.333333", r"\frac{1}{3}"), ("1.5\\times 10^{3}", "1500"), (r"6 \times 10^{-2}", "0.06"), ("2", "|{-2}|"),
    *(ASYMMETRIC := [("1<x<2", "(1,2)"), ("5", "2+3=5"), ("4", "2x=4")]),  # the other way round these differ
]  # fmt: skip

# (gold, boxed answer): another answer
DIFFERENT = [
    ("5", "6"), ("5", "-5"), ("-3", "3"), ("3", "-3"), ("1234", "1,235"), ("12", "1.2"), ("1.2", "12"), ("5", "55"),
    ("0.5", "0.05"), (r"\frac{1}{2}", r"\frac{1}{3}"), ("3/4", "4/3"), (r"\sqrt{2}", "2"), (r"\pi", "3.14"), (r"\pi", "3"),
    ("50\\%", "5\\%"), ("50", "0.5"), ("0.5", "50"), ("x+1", "x-1"), ("x+1", "y+1"), ("p-q", "q-p"), ("x=5", "6"), ("5", "x=6"),
    ("3", "(2,4)"), ("3", "[2,4]"), ("3", r"\{3,4\}"), ("3", "1,2,3"), (r"\{1,2\}", r"\{1,2,3\}"), (r"\{1,2,3\}", "2"),
    ("(1,2)", "(2,1)"), ("[0,1]", "[0,1)"), ("(0,1)", "[0,1]"), (r"(-\infty,3]", r"(-\infty,3)"), ("3+4i", "3-4i"),
    (r"\text{Evelyn}", "Angela"), (r"\text{even}", "odd"), (r"\text{(C)}", "(B)"), ("5", ""), ("5", "?"), ("5", r"\text{five apples}"),
    ("5", r"\frac{"), ("5", "((((("), ("5", "{"), ("5", r"\undefined{5}{6}"), ("5", "5" * 600), ("5", "x"), ("2^{10}", "1023"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}"),
    ("204", "2 0 4 1"), ("x<5", "x>5"), ("10:05", "10:06"),
    ("2+3=5", "5"), ("2x=4", "4"),
]  # fmt: skip

BOXED = [
    *((gold, f"We find \\boxed{{{answer}}}.", 1.0) for gold, answer in EQUAL),
    *((gold, f"We find \\boxed{{{answer}}}.", 0.0) for gold, answer in DIFFERENT),
    ("5", "It is 5.", 0.0),  # nothing is boxed
    ("5", "First \\boxed{4}, no, \\boxed{5}", 1.0),  # the last one counts
    ("5", "First \\boxed{5}, no, \\boxed{4}", 0.0),
    ("5", "\\boxed{5} and then \\boxed{", 1.0),  # never closed: none
    ("5", "<think>\\boxed{5}</think> The answer is 6.", 0.0),  # a thought is no answer
    ("5", "<think>\\boxed{4}</think> \\boxed{5}", 1.0),
    ("5", "\\fbox{5}", 1.0),
    ("5", "\\boxed {5}", 1.0),
    (r"\frac{a}{b}", r"so $\boxed{\frac{a}{b}}$ holds", 1.0),  # nested braces
    (r"\{1\}", r"\boxed{\{1\}}", 1.0),  # braces that are no braces
]

LAST_NUMBER = [
    ("18", "She makes $18.", 1.0),
    ("18", "9 * 2 = 18 dollars every day", 1.0),
    ("70000", "a profit of $70,000", 1.0),
    ("1234", "1,234.", 1.0),
    ("-3", "the result is -3", 1.0),
    ("-3", "x = −3", 1.0),
    ("3", "the result is -3", 0.0),
    ("3", "from 5 we take 2: 5-2=3", 1.0),
    ("2", "that is 5-2", 1.0),  # a difference, not minus two
    ("-2", "that is 5-2", 0.0),
    ("0.5", "one half, 0.5", 1.0),
    ("0.5", "one half, .5", 1.0),
    ("0.75", "that is 3/4", 1.0),
    ("0.75", r"that is $\frac{3}{4}$", 1.0),
    ("5", "5 of them, not 6", 0.0),
    ("5", "five", 0.0),
    ("5", "", 0.0),
    ("12", "Step 1: 12", 1.0),
    ("12", "12 (see step 1)", 0.0),  # the last number, and no other
    ("2", "1, 2", 1.0),
    ("20", "20%", 1.0),
    ("16", "#### 16", 1.0),
    ("16", "the answer is **16**", 1.0),
    ("1000000", "1,000,000 people", 1.0),
]

CHOICE = [
    ("C", "The answer is C.", 1.0),
    ("C", "Answer: (C)", 1.0),
    ("(C)", "Answer: C", 1.0),
    (r"\text{(C)}", r"\boxed{\text{C}}", 1.0),
    ("C", r"\boxed{(C)}", 1.0),
    ("C", r"\boxed{C) 42}", 1.0),
    ("C", r"\boxed{c}", 1.0),
    ("C", "A is wrong and B is wrong.\nC", 1.0),
    ("C", "The correct option is **C**", 1.0),
    ("C", "The answer is B.", 0.0),
    ("C", r"\boxed{B}", 0.0),
    ("C", "The answer is C. No: the answer is D.", 0.0),
    ("C", "I cannot tell.", 0.0),
    ("C", r"\boxed{Cat}", 0.0),
    ("A", "A good question. The answer is D", 0.0),
]

JSON = [
    ("5", '{"answer": 5}', 1.0),
    ("5", '{"answer": "5"}', 1.0),
    ("5", 'Here it is:\n```json\n{"work": "2+3", "answer": 5.0}\n```', 1.0),
    ("5", '{"answer": 4} no: {"answer": 5}', 1.0),
    ("5", '{"answer": 5} no: {"answer": 4}', 0.0),
    ("0.5", '{"answer": "\\\\frac{1}{2}"}', 1.0),
    ("5", '{"result": 5}', 0.0),
    ("5", '{"answer": 5', 0.0),
    ("5", "5", 0.0),
    ("5", '{"answer": null}', 0.0),
    ("[1, 2]", '{"answer": [1, 2]}', 1.0),
    ("5", '{"answer": {"value": 5}}', 0.0),
]

PAIRS = {"boxed": BOXED, "last_number": LAST_NUMBER, "choice": CHOICE, "json": JSON}
