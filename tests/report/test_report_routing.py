"""The routing section: numbers recomputed from the rows, profiles by place, and no section without routes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sweep_in_memory import arm, run, sweep
from synthetic_sweep import ARMS, write_sweep

from minirl.report.claims import evaluate
from minirl.report.page import page
from minirl.report.profiles import profile_plot
from minirl.report.read import read_sweep
from minirl.report.routing import COLUMNS, has_routes, profile_of, routing_section


def flat(value: float) -> dict[int, float]:
    return dict.fromkeys((0, 50, 100), value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "replay")


def rows_of(folder: Path, name: str) -> list[list[dict[str, float]]]:
    found = []
    for record in sorted(folder.glob("*/run.json"), key=lambda path: json.loads(path.read_text())["seed"]):
        if json.loads(record.read_text())["arm"] == name:
            found.append([json.loads(line) for line in (record.parent / "metrics.jsonl").read_text().splitlines()])
    return found


def at_end(rows: list[dict[str, float]], metric: str) -> float:
    return float(np.mean([row[metric] for row in rows if metric in row and row["version"] >= 0.9 * 96]))


def test_the_table_is_what_the_rows_say(folder: Path) -> None:
    markup = str(routing_section(read_sweep(folder)))
    body = markup[markup.index("<tbody>") : markup.index("</tbody>")]
    for line, name in zip(re.findall(r"<tr>.*?</tr>", body), ARMS, strict=True):
        cells = re.findall(r'<td class="number"[^>]*>(.*?)</td>', line)
        runs = rows_of(folder, name)
        for (metric, _), cell in zip(COLUMNS, cells, strict=True):
            if all(metric not in row for rows in runs for row in rows):
                assert cell == "–"
                continue
            values = [at_end(rows, metric) for rows in runs]
            if len(set(values)) == 1:
                assert cell == f"{values[0]:.3g}"
                continue
            low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
            assert cell == f"{np.mean(values):.3g} [{low:.3g}, {high:.3g}]", metric


def test_profiles_are_one_minus_the_overlap_at_the_end(folder: Path) -> None:
    found = read_sweep(folder)
    for index, one in enumerate(found.distinct_arms):
        profile = profile_of(index, one, "routing/by_layer/")
        expected = [
            {str(layer): 1 - at_end(rows, f"routing/by_layer/{layer}") for layer in range(3)}
            for rows in rows_of(folder, one.name)
        ]
        assert [pytest.approx(seed) for seed in expected] == list(profile.seeds)
        assert profile.mean("2") == pytest.approx(np.mean([seed["2"] for seed in expected]))


def test_places_are_in_the_order_of_numbers_with_the_prompt_first() -> None:
    names = ("64", "prompt", "4", "16", "0", "1")
    metrics = {f"routing/by_position/{name}": flat(0.9) for name in names} | {"routing/overlap": flat(0.9)}
    markup = str(routing_section(sweep([arm("A", [run(seed, metrics) for seed in range(3)])])))
    axis = markup[markup.index('class="ticks x"') :]
    assert re.findall(r"<text[^>]*>([^<]*)</text>", axis[: axis.index("</g>")]) == ["prompt", "0", "1", "4", "16", "64"]


def test_48_layers_get_as_many_points_and_fewer_labels() -> None:
    metrics = {f"routing/by_layer/{layer}": flat(1 - layer / 100) for layer in range(48)}
    one = profile_of(0, arm("A", [run(0, metrics)]), "routing/by_layer/")
    drawn = str(profile_plot("by layer", "layer", [str(layer) for layer in range(48)], [one]))
    assert drawn.count('class="mark"') == 48 + 1  # and the one beside the letter
    axis = drawn[drawn.index('class="ticks x"') :]
    assert axis[: axis.index("</g>")].count("<text") == 12


def test_an_arm_whose_layers_are_fewer_has_its_own_places() -> None:
    """A model with a dense first layer beside one without: both are drawn at absolute ids."""
    metrics = [{f"routing/by_layer/{layer}": flat(0.9) for layer in layers} for layers in ((0, 1, 2), (1, 2))]
    arms = [arm(name, [run(0, each)]) for name, each in zip("AB", metrics, strict=True)]
    markup = str(routing_section(sweep(arms)))
    assert "A: 0: 0.1, 1: 0.1, 2: 0.1; B: 1: 0.1, 2: 0.1" in markup


def test_a_dense_sweep_has_no_such_section_and_no_link_to_it() -> None:
    dense = sweep([arm("A", [run(0, {"eval/avg": flat(0.5)})])])
    assert not has_routes(dense) and routing_section(dense) is None
    assert "#routing" not in page(dense, evaluate(dense), now=0.0)


def test_an_arm_that_replays_is_shown_before_anything_was_measured() -> None:
    planned = sweep([arm("R3", [run(0, {}, state="running", config={"algo.routing": "r3"})])])
    markup = page(planned, evaluate(planned), now=0.0)
    assert 'href="#routing"' in markup and "<code>r3</code>" in markup
