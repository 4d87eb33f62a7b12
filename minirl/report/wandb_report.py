"""The argument of a sweep as a W&B report: curves that W&B draws from its own runs, and our verdicts beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minirl.config import ConfigError
from minirl.record import write_atomically
from minirl.report import markdown
from minirl.report.claims import evaluate
from minirl.report.coldstart_page import CURVES, answer
from minirl.report.coldstarts import Comparison, compared_starts
from minirl.report.differences import differences
from minirl.report.findings import Judgement
from minirl.report.page import drawable
from minirl.report.panels import EVALUATION, MAIN, Panel
from minirl.report.read import Sweep, read_sweep

COLUMNS, HEIGHT = 24, 9  # of W&B's grid of panels
LONGEST_TITLE = 128
NOWHERE = "entity"  # stands for the account in a specification that is only written down


class Place:
    """Where the sweep's runs are in W&B: as their configuration says."""

    def __init__(self, sweep: Sweep, entity: str | None) -> None:
        configs = [run.config for run in sweep.runs if run.config]
        self.project = str(next((c["tracker.project"] for c in configs if "tracker.project" in c), "minirl"))
        named = next((c["tracker.entity"] for c in configs if c.get("tracker.entity")), None)
        self.entity = str(named or entity) if named or entity else None


def refuse_options(*, wandb: bool, draft: bool, out: Path | None) -> None:
    """Raises ConfigError where --draft or --out stands without --wandb."""
    if (draft or out) and not wandb:
        raise ConfigError(f"{'--draft' if draft else '--out'} is of the W&B report: add --wandb")


def specify(sweep_folder: Path, path: Path) -> list[Path]:
    """The reports' specifications as JSON, without network or key: the sweep's at `path`, that of its cold starts
    beside it."""
    sweep = read_sweep(sweep_folder)
    made = reports(sweep, evaluate(sweep), Place(sweep, None))
    names = [path, path.with_name(f"{path.stem}.coldstarts{path.suffix}")]
    for name, report in zip(names, made, strict=False):
        spec = json.loads(report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))
        write_atomically(name, json.dumps(spec, indent=1, ensure_ascii=False) + "\n")
    return names[: len(made)]


def publish(sweep_folder: Path, *, draft: bool) -> list[str]:
    """Saves the reports; their addresses. Raises ConfigError without a key, and what the library raises."""
    from minirl.tracking.wandb_run import require_key

    require_key()
    import wandb

    sweep = read_sweep(sweep_folder)
    place = Place(sweep, None)
    if place.entity is None:
        place = Place(sweep, wandb.Api().default_entity)
    made = reports(sweep, evaluate(sweep), place)
    for report in made:
        report.save(draft=draft)
    return [report.url for report in made]


def reports(sweep: Sweep, judgements: Sequence[Judgement], place: Place) -> list[Any]:
    """The sweep's report, and one of its cold starts where it compares several."""
    library = _library()
    starts = compared_starts(sweep, judgements)
    made = [_report(sweep, sweep.title, _argument(sweep, judgements, starts, place), place)]
    if starts is not None:
        blocks = _cold(sweep, judgements, starts, place)
        made.append(_report(sweep, f"Cold starts: {sweep.title}", [library.TableOfContents(), *blocks], place))
    return made


def _library() -> Any:
    try:
        import wandb_workspaces.reports.v2 as library
    except ImportError:
        raise ConfigError("--wandb needs wandb-workspaces: pip install 'minirl[report]'") from None
    return library


def _report(sweep: Sweep, title: str, blocks: Sequence[Any], place: Place) -> Any:
    shown = title if len(title) <= LONGEST_TITLE else f"{title[: LONGEST_TITLE - 1]}…"
    return _library().Report(
        project=place.project,
        entity=place.entity or NOWHERE,
        title=shown,
        description=f"minirl report {sweep.name}",
        blocks=list(blocks),
        width="fluid",
    )


def _argument(sweep: Sweep, judgements: Sequence[Judgement], starts: Comparison | None, place: Place) -> list[Any]:
    """Verdicts first, then the curves that they are about, then what else differs."""
    library = _library()
    drawn = list(drawable(sweep, (EVALUATION, *MAIN))[0])
    text = library.MarkdownBlock
    blocks = [
        text(markdown.plain(markdown.summary(sweep, judgements))),
        library.H2("Verdicts"),
        text(markdown.verdicts(judgements)),
        library.H2("Curves"),
        _grid(sweep, drawn, place),
        text(markdown.ends(sweep, drawn)),
        library.H2("Every run"),
        text(markdown.evaluations(sweep)),
        library.H2("What differs"),
        text(markdown.changes(sweep, differences(sweep))),
    ]
    return blocks if starts is None else [*blocks, *_cold(sweep, judgements, starts, place)]


def _cold(sweep: Sweep, judgements: Sequence[Judgement], starts: Comparison, place: Place) -> list[Any]:
    library = _library()
    return [
        library.H2("Did the cold starts converge?"),
        library.MarkdownBlock(markdown.plain(answer(starts))),
        library.MarkdownBlock(markdown.verdicts(starts.verdicts)),
        _grid(sweep, CURVES, place),
        library.MarkdownBlock(markdown.spreads(starts)),
        library.MarkdownBlock(markdown.starts(starts)),
    ]


def _grid(sweep: Sweep, panels: Sequence[Panel], place: Place) -> Any:
    """Panels over updates; seeds of an arm are averaged, with their standard deviation as a band."""
    library = _library()
    plots = [_plot(panel, number) for number, panel in enumerate(panels)]
    return library.PanelGrid(runsets=[_run_set(sweep, arm.name, place) for arm in sweep.distinct_arms], panels=plots)


def _run_set(sweep: Sweep, arm: str, place: Place) -> Any:
    """An arm's training runs. Without an account there is no run set of a project, which would ask the server."""
    import wandb_workspaces.expr as expr

    chosen = [expr.Metric("Group") == sweep.name, expr.Metric("JobType") == "train", expr.Config("arm") == arm]
    where = {"entity": place.entity, "project": place.project} if place.entity else {}
    return _library().Runset(name=arm, filters=chosen, groupby=["config.arm"], **where)


def _plot(panel: Panel, number: int) -> Any:
    library = _library()
    width = COLUMNS // 2
    return library.LinePlot(
        title=panel.title,
        x="version",
        y=[panel.metric],
        title_x="updates",
        title_y=panel.note[:60],
        log_y=panel.logarithmic,
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        layout=library.Layout(x=width * (number % 2), y=HEIGHT * (number // 2), w=width, h=HEIGHT),
    )
