"""The paper's figures, drawn from cells: their runs, and entries of tables where the paper gives numbers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ccvr.core.results import UNCALIBRATED
from ccvr.report.figures import cka, clients, heads, inversion, sweeps, tsne
from ccvr.report.figures.panel import Panel, lines
from ccvr.report.groups import Spread
from ccvr.report.palette import pens
from ccvr.report.published import Published
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import Scale
from ccvr.reproduction.comparison import TableRow
from ccvr.reproduction.heads import BEFORE, HEADS, ORACLE, HeadName

AMOUNTS: dict[HeadName, str] = {
    BEFORE: "none",
    HeadName("oracle-partial-100"): "100",
    HeadName("oracle-partial-1000"): "1000",
    ORACLE: "all",
}
PAPER = "the paper (100 × 10)"


@dataclass(frozen=True)
class Shown:
    """A run as a figure shows it."""

    cell: str
    method: str
    setting: str
    """Data and owners."""
    scale: Scale | None
    files: RunFiles
    """Named as legends name the run."""

    @property
    def about(self) -> str:
        return _joined(self.method, self.setting, self.scale.phrase if self.scale else "")


@dataclass(frozen=True)
class Plate:
    """A panel, the cell or scale that sets it apart from others, and what it is of, in words."""

    panel: Panel
    of: str
    about: str


DrawFigure = Callable[[Sequence[Shown], Sequence[TableRow]], list[Plate]]


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def each_run(draw: Callable[[RunFiles], list[Panel]]) -> DrawFigure:
    """Panels of every cell, from the first run that there is of it."""

    def plates(runs: Sequence[Shown], _: Sequence[TableRow]) -> list[Plate]:
        firsts = {run.cell: run for run in reversed(runs)}
        chosen = [run for run in runs if firsts[run.cell] is run]
        return [Plate(panel, run.cell, run.about) for run in chosen for panel in draw(run.files)]

    return plates


def together(draw: Callable[[Sequence[RunFiles]], list[Panel]]) -> DrawFigure:
    """A panel for each scale, in which its runs stand together: those of different scales are not compared."""

    def plates(runs: Sequence[Shown], _: Sequence[TableRow]) -> list[Plate]:
        found = []
        for scale in dict.fromkeys(run.scale for run in runs if run.scale):
            own = [run for run in runs if run.scale == scale]
            shared = [run.setting for run in own[:1] if len({each.setting for each in runs}) == 1]
            panels = draw([run.files for run in own])
            found += [Plate(panel, scale.name, _joined(*shared, scale.phrase)) for panel in panels]
        return found

    return plates


def _own_likeness(run: RunFiles) -> RunFiles:
    """The run with its own CKA alone, with short names of layers where these are unique."""
    if cka.OWN not in run.analyses:
        return replace(run, analyses={})
    arrays, about = run.analyses[cka.OWN]
    short = [layer(path) for path in about["layers"]]
    layers = short if len(set(short)) == len(short) else about["layers"]
    return replace(run, analyses={cka.OWN: (arrays, {**about, "layers": layers})})


def pairs(run: RunFiles) -> list[Panel]:
    return cka.pairs([_own_likeness(run)])


def means(runs: Sequence[RunFiles]) -> list[Panel]:
    return cka.means([_own_likeness(run) for run in runs])


def layer(path: str) -> str:
    """``backbone.model.layer1.2`` → ``layer1``, as the paper counts them; paths of other networks as they are."""
    return next((part for part in path.split(".") if part.startswith("layer")), path)


def norms_at_both_ends(run: RunFiles) -> list[Panel]:
    """Norms of the clients' heads after the first round and after the last."""
    panels = clients.client_norms(run)[1:-1]  # between the label mix and the picture of all rounds
    return [replace(panel, name=panel.name.removeprefix("head-row norms in ")) for panel in panels]


def labels_and_norms(run: RunFiles) -> list[Panel]:
    return [*(replace(each, name="labels") for each in clients.label_distribution(run)), *norms_at_both_ends(run)]


def separability(runs: Sequence[RunFiles]) -> list[Panel]:
    """What CCVR and the bound gained, against how far apart the classes are."""
    return sweeps.separability([_with_two_gains(run) for run in runs if "separability" in run.analyses])


def _with_two_gains(run: RunFiles) -> RunFiles:
    arrays, about = run.analyses["separability"]
    gains = {label: gain for label, gain in about["gains"].items() if label in ("ccvr", "oracle")}
    return replace(run, analyses={**run.analyses, "separability": (arrays, {**about, "gains": gains})})


def reconstructions(number: int) -> DrawFigure:
    """Pictures from means of so many features."""

    def draw(run: RunFiles) -> list[Panel]:
        if "inversion" not in run.analyses:
            return []
        arrays, about = run.analyses["inversion"]
        chosen = {**about, "numbers": [each for each in about["numbers"] if each == number]}
        only = replace(run, analyses={"inversion": (arrays, chosen)})
        pictures = inversion.inversion(only)[:1] if chosen["numbers"] else []
        return [replace(panel, name="") for panel in pictures]

    return each_run(draw)


def virtual_features(_: Sequence[Shown], rows: Sequence[TableRow]) -> list[Plate]:
    """Accuracy against virtual features per class, the paper's and ours."""
    heads = sorted({row.head for row in rows}, key=lambda head: HEADS[head].num_virtual)
    amounts = {head: str(HEADS[head].num_virtual) for head in heads}
    return list(_curves(rows, amounts, "virtual features per class (M_c)"))


def real_samples(_: Sequence[Shown], rows: Sequence[TableRow]) -> list[Plate]:
    """Accuracy against real samples per class that calibration had, the paper's and ours."""
    return list(_curves(rows, AMOUNTS, "real samples per class"))


def _curves(rows: Sequence[TableRow], amounts: Mapping[HeadName, str], x: str) -> Iterator[Plate]:
    """A panel for each cell with the paper's curve and one of ours for each scale; where a scale lacks an amount, its
    curve is interrupted. Amounts stand in equal steps, as they span three orders of magnitude and zero.
    """
    order = [head for head in amounts if any(row.head == head for row in rows)]
    for cell in dict.fromkeys(row.cell for row in rows):
        own = [row for row in rows if row.cell == cell]
        every: dict[str, dict[HeadName, Spread | Published]] = {
            PAPER: {row.head: row.paper for row in own if row.paper}
        }
        for scale, seeds in dict.fromkeys((row.scale, row.seeds) for row in own if row.scale):
            name = _joined(f"ours ({scale.numbers})", f"{seeds} seeds" if seeds > 1 else "")
            every[name] = {row.head: row.ours for row in own if row.ours and row.scale == scale}
        series = {
            name: [(float(place), each[head].mean if head in each else math.nan) for place, head in enumerate(order)]
            for name, each in every.items()
            if each
        }
        figure, axes = lines(series, x, "test accuracy, %", unit=" %")
        for name, pen in zip(series, pens(), strict=False):
            for head, each in every[name].items():
                axes.errorbar(order.index(head), each.mean, each.std or 0, color=pen.colour, capsize=2, linewidth=1)
        axes.set_xticks(range(len(order)), [amounts[head] for head in order])
        words = "; ".join(f"{name}: {', '.join(_number(y) for _, y in points)}" for name, points in series.items())
        steps = ", ".join(amounts[head] for head in order)
        alt = f"Test accuracy in percent by {x}, {steps}: {words}."
        yield Plate(Panel(figure, alt), cell, _joined(_plain(own).method, own[0].setting))


def _plain(rows: Sequence[TableRow]) -> TableRow:
    """The row whose method names no head."""
    return min(rows, key=lambda row: row.head != UNCALIBRATED)


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


DRAWS: dict[str, DrawFigure] = {
    "figure1": each_run(pairs),
    "figure2": together(means),
    "figure3": each_run(labels_and_norms),
    "figure4": real_samples,
    "figure5": each_run(tsne.tsne),
    "figure6": together(separability),
    "figure7": virtual_features,
    "figure8": reconstructions(1),
    "figure9": reconstructions(3),
    "figure10": each_run(heads.norms),
    "figure11": together(means),
    "figure12": each_run(norms_at_both_ends),
    "figure13": each_run(tsne.tsne),
    "figure14": virtual_features,
    "figure15": each_run(clients.label_distribution),
}
