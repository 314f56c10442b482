"""The tables of a comparison: its algorithms, and their differences to the first one."""

from collections.abc import Mapping

from ccvr.comparison.arms import AFTER, BEFORE, MEASURES, Comparison, Difference, Measure, p_text
from ccvr.comparison.paired import LEVEL
from ccvr.core.results import UNCALIBRATED
from ccvr.report.groups import Spread
from ccvr.report.text_table import DASH, TextTable, Value


def tables_of(comparison: Comparison) -> list[TextTable]:
    """The algorithms, and their differences to the first one where there are two seeds of some."""
    is_paired = any(each.paired.n > 1 for each in comparison.differences())
    return [_arms_table(comparison), *([_differences_table(comparison)] if is_paired else [])]


def _measures(comparison: Comparison) -> dict[str, Measure]:
    """Columns of the table: those of ``MEASURES``, behind the gain other heads and the clients' own models."""
    runs = [run for arm in comparison.arms for run in arm.runs]
    deployed = {run.deployed for run in runs}
    shown = {UNCALIBRATED} | (deployed if len(deployed) == 1 else set())
    labels = dict.fromkeys(label for run in runs for label in run.accuracy if label not in shown)
    heads = {f"head {label}" if label in MEASURES else label: _accuracy_of(label) for label in labels}
    own = dict.fromkeys(label for run in runs for label in run.personal)
    first = {name: MEASURES[name] for name in (BEFORE, AFTER, "gain")}
    return {**first, **heads, **{f"personal {label}": _personal(label) for label in own}, **MEASURES}


def _arms_table(comparison: Comparison) -> TextTable:
    spreads = {
        name: [arm.spread(measure) for arm in comparison.arms] for name, measure in _measures(comparison).items()
    }
    columns = {name: found for name, found in spreads.items() if name in MEASURES or any(found)}
    rows: list[list[str]] = []
    values: list[dict[str, Value]] = []
    for number, arm in enumerate(comparison.arms):
        cells = {name: found[number] for name, found in columns.items()}
        rows.append([arm.name, str(len(arm.runs)), *(_text(name, cell) for name, cell in cells.items())])
        values.append({"algorithm": arm.name, "seeds": len(arm.runs), **_csv(cells)})
    caption = f"{comparison.about}. Test accuracy in percent; mean ± standard deviation over seeds"
    return TextTable(caption, ("algorithm", "seeds", *columns), rows, ("algorithm",), values, "algorithms")


def _differences_table(comparison: Comparison) -> TextTable:
    differences = comparison.differences()
    rows = [[each.measure, each.arm, *_cells(each), each.verdict] for each in differences]
    caption = (
        f"Points over {comparison.arms[0].name} at the same seed: mean, {1 - LEVEL:.0%} t interval, p by the paired t "
        f"test, corrected for {len(differences)} comparisons (Holm)"
    )
    headers = ("calibration", "algorithm", "seeds", "difference", "low", "high", "p", "verdict")
    words = ("calibration", "algorithm", "verdict")
    return TextTable(caption, headers, rows, words, [each.row() for each in differences], "differences")


def _accuracy_of(label: str) -> Measure:
    return lambda run: run.accuracy.get(label)


def _personal(label: str) -> Measure:
    return lambda run: run.personal.get(label)


def _text(name: str, spread: Spread | None) -> str:
    return DASH if spread is None else spread.text("+" if name == "gain" else "")


def _csv(cells: Mapping[str, Spread | None]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, spread in cells.items():
        found |= {name: spread.mean if spread else None, f"{name} std": spread.std if spread else None}
    return found


def _cells(each: Difference) -> list[str]:
    found = each.paired
    ends = [DASH if end is None else f"{end:+.2f}" for end in (found.low, found.high)]
    return [str(found.n), f"{found.mean:+.2f}", *ends, DASH if each.p is None else p_text(each.p)]
