"""The parts of the page, from top to bottom, and the commands that repeat a run."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ccvr.core.results import UNCALIBRATED, personal_rows, shared_line
from ccvr.core.trust import code_names
from ccvr.report.figure_set import Drawn
from ccvr.report.groups import Group, Score, Spread
from ccvr.report.markup import DASH, as_name, as_setting, as_text, headline_number, spread_cell
from ccvr.report.runs import RunFiles

FIELDS = (
    *("data.name", "partition.kind", "partition.alpha", "partition.num_clients"),
    *("model.name", "training.algorithm", "training.rounds", "training.local_epochs", "training.batch_size"),
    *("training.lr", "training.client_fraction", "calibration.methods"),
)
"""Fields of the spec that are shown at once; the rest unfolds."""
NUMBERS = ("accuracy, %", "gain", "worst class, %", "worst client, %")
"""Columns of the table of heads; what matters most is seen first on a narrow screen."""
OVER_CLIENTS: tuple[Score, ...] = ("mean", "worst")
MAX_ROWS = 60
"""Of a table that is seen whole; a longer one scrolls in itself."""


def card(found: Group) -> str:
    """The headline of one group: before → after, gain, worst class."""
    label = found.deployed
    before, after, gain = found.accuracy(UNCALIBRATED), found.accuracy(label), found.gain(label)
    if label == UNCALIBRATED:
        head = f'<p class="big">{headline_number(before, "before")}</p><p>The model is saved without calibration.</p>'
    else:
        head = (
            f'<p class="big">{headline_number(before, "before")} → {headline_number(after, "after")}</p>'
            f"<p>{headline_number(gain, 'gain', '+', ' points')} with {as_name(label)}</p>"
        )
    worst = [(each, found.worst_class(each)) for each in dict.fromkeys([UNCALIBRATED, label])]
    words = " → ".join(_worst(found, each, value) for each, value in worst if value is not None)
    lowest = f"<p>Worst class: {words}</p>" if words else ""
    name = f'<p class="name"><strong>{as_name(found.name)}</strong><br>{as_name(found.about, 200)}</p>'
    personal = "".join(f"<p>{_own_line(found, each)}</p>" for each in found.own_models[:1])
    moved = as_text(shared_line(found.runs[0].results))  # repeats share the spec, and so the samples
    shared = f"<p>{moved[0].upper()}{moved[1:]}</p>" if moved else ""
    return f'<section class="card">{name}{head}{lowest}{personal}{shared}</section>'


def _worst(found: Group, label: str, value: Spread) -> str:
    run = found.runs[0]
    if len(found.runs) > 1:
        return f"{value.text()} %"
    recalls = run.results["per_class_recall"][label]
    return f"{value.text()} % ({as_name(run.class_names[recalls.index(value.mean)])})"


def _own_line(found: Group, label: str) -> str:
    """The best of the clients' own models beside the global one."""
    scores = (found.own(label, "mean"), found.own(label, "worst"), found.shared(label, "mean"))
    mean, worst, shared = (DASH if each is None else f"{each.text()} %" for each in scores)
    return (
        f"Each client's own model ({as_name(label)}) under its label mix: mean {mean}, worst {worst}; "
        f"the global model: mean {shared}"
    )


def contents(drawn: Sequence[Drawn], sections: Sequence[str]) -> str:
    links = ['<li><a href="#accuracies">Accuracy</a></li>', '<li><a href="#what">What was run</a></li>']
    for name in sections:
        inside = "".join(
            f'<li><a href="#figure-{each.row.id}">{each.row.title}</a></li>'
            for each in drawn
            if each.row.section == name
        )
        links.append(f'<li><a href="#{_id(name)}">{name}</a><ul>{inside}</ul></li>')
    links.append('<li><a href="#repeat">How to repeat it</a></li>')
    return f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>'


def _id(section: str) -> str:
    return section.lower().replace(" ", "-")


def accuracies(groups: Sequence[Group]) -> str:
    """Every head of every group: mean ± standard deviation over seeds."""
    kinds = {"run": " class=run", "head": "", **dict.fromkeys(NUMBERS, " class=n")}
    head = "".join(_header(name, kind) for name, kind in kinds.items() if name != "run" or len(groups) > 1)
    rows = []
    for each in groups:
        for label in each.heads:
            star = " *" if label == each.deployed else ""
            cells = [
                f"<td class=run>{as_name(each.name)}</td>" * (len(groups) > 1),
                f"<td>{as_name(label)}{star}</td>",
                spread_cell(each.accuracy(label)),
                spread_cell(None if label == UNCALIBRATED else each.gain(label), "+"),
                spread_cell(each.worst_class(label)),
                spread_cell(each.worst_client(label)),
            ]
            rows.append(f"<tr>{''.join(cells)}</tr>")
    note = " Mean ± standard deviation over seeds." if any(len(each.runs) > 1 for each in groups) else ""
    return (
        '<h2 id="accuracies">Accuracy</h2><p class="faint">On the test set; gain in points over the trained head. '
        f"* saved as the run's model.{note} The headers sort.</p>"
        + scrolling(
            f'<table id="heads"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>',
            len(rows),
            "Accuracy of every head",
        )
    )


def own_models(groups: Sequence[Group]) -> str:
    """Every personalisation of every group beside the global model; nothing where there is none."""
    columns = ("own mean, %", "global mean, %", "own worst, %", "global worst, %")
    head = "".join(_header(name) for name in ("run", "own models")) + "".join(_header(n, " class=n") for n in columns)
    rows = [
        f"<tr><td class=run>{as_name(each.name)}</td><td>{as_name(label)}</td>"
        + "".join(spread_cell(find(label, key)) for key in OVER_CLIENTS for find in (each.own, each.shared))
        + "</tr>"
        for each in groups
        for label in each.own_models
    ]
    if not rows:
        return ""
    return (
        '<h2 id="own">Models of the clients\' own</h2><p class="faint">On the test set under each client\'s label mix: '
        "mean and worst over clients, of the clients' own models and of the global one, under the head that they "
        "started from.</p>"
        + scrolling(
            f'<table id="own-models"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>',
            len(rows),
            "Accuracy of the clients' own models",
        )
    )


def own_code(runs: Sequence[RunFiles]) -> str:
    """A line that names the code that is not ours and made the numbers; nothing where there is none."""
    found = [name for run in runs for _, name in code_names([run.spec, *_rows(run)])]
    if not found:
        return ""
    names = ", ".join(f"<code>{as_text(name)}</code>" for name in dict.fromkeys(found))
    return f'<p id="own-code">These numbers come from code that is not part of ccvr: {names}.</p>'


def _rows(run: RunFiles) -> list[Any]:
    """What results.json says about methods."""
    own = [[row["method"], row["options"]] for row in personal_rows(run.results).values()]
    return [*run.results["calibrations"].values(), *own]


def scrolling(table: str, rows: int, what: str) -> str:
    """A table that may be wider than the screen; if it is long, it scrolls in itself."""
    tall = " tall" if rows > MAX_ROWS else ""
    return f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="{what}">{table}</div>'


def _header(name: str, kind: str = "") -> str:
    return f'<th scope="col"{kind}><button type="button">{name}</button></th>'


def what_was_run(groups: Sequence[Group]) -> str:
    settings = [each.runs[0].settings for each in groups]
    every = list(dict.fromkeys(key for each in settings for key in each))
    apart = [key for key in every if any(each.get(key) != settings[0].get(key) for each in settings)]
    first = [key for key in every if key in FIELDS or key in apart]
    rest = [key for key in every if key not in first]
    table = _settings(first, groups)
    more = f"<details><summary>All other fields</summary>{_settings(rest, groups)}</details>" if rest else ""
    return f'<h2 id="what">What was run</h2>{table}{more}'


def _settings(keys: Sequence[str], groups: Sequence[Group]) -> str:
    head = "".join(f'<th scope="col">{as_name(each.name)}</th>' for each in groups)
    rows = "".join(
        f'<tr><th scope="row">{as_text(key)}</th>'
        + "".join(f"<td>{as_setting(each.runs[0].settings.get(key))}</td>" for each in groups)
        + "</tr>"
        for key in keys
    )
    table = (
        f'<table class="settings"><thead><tr><th scope="col">field</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )
    return scrolling(table, 0, "Fields of the spec")


def section(name: str, drawn: Sequence[Drawn], drawings: Mapping[str, Sequence[str]]) -> str:
    """A section with its figures; ``drawings`` has the SVG of their panels."""
    figures = "".join(_figure(each, drawings[each.row.id]) for each in drawn)
    return f'<h2 id="{_id(name)}">{name}</h2><div class="figures">{figures}</div>'


def _figure(each: Drawn, drawings: Sequence[str]) -> str:
    row = each.row
    panels = "".join(
        '<div class="panel">' + (f"<p>{as_name(panel.name)}</p>" if len(each.panels) > 1 else "") + drawing + "</div>"
        for panel, drawing in zip(each.panels, drawings, strict=True)
    )
    kind = "wide" if len(each.panels) > 1 else ""
    if row.columns == 3 <= len(each.panels):
        kind += " three"
    return (
        f'<figure class="{kind}" aria-labelledby="figure-{row.id}">'
        f'<h3 id="figure-{row.id}">{row.title}</h3><figcaption>{row.caption}</figcaption>'
        f'<div class="panels">{panels}</div></figure>'
    )


def how_to_repeat(runs: Sequence[RunFiles]) -> str:
    parts = [
        '<h2 id="repeat">How to repeat it</h2><p class="faint">The run, calibrations that were added to it, and what '
        "looked into it. RUN is the run's folder.</p>"
    ]
    for run in runs:
        found = run.provenance
        facts = {
            "commit": found.get("commit"),
            "seed": run.spec.get("seed"),
            "started": found.get("started"),
            **{f"version of {name}": value for name, value in _mapping(found.get("versions")).items()},
            **_mapping(found.get("hardware")),
        }
        rows = "".join(
            f'<tr><th scope="row">{as_text(key)}</th><td>{as_setting(value)}</td></tr>' for key, value in facts.items()
        )
        parts.append(
            f"<h3>{as_name(run.label)}</h3><pre>{as_text(chr(10).join(commands(run)))}</pre>"
            f"<details><summary>Commit, versions, machine</summary><table><tbody>{rows}</tbody></table></details>"
        )
    return "".join(parts)


def _mapping(value: object) -> dict[str, Any]:
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}


COME_WITH_THE_RUN = ("confusion", "norms", "separability")
"""Analyses that a run or a calibration ends with by itself."""
AGAINST = "cka-against"


def commands(run: RunFiles) -> list[str]:
    """As they were given: the run, what was added to it; then what looks into it. RUN is the run's folder."""
    said = [_words(run.provenance) or "ccvr run RUN/spec.toml"]
    for what in ("calibrated", "personalised"):
        later = run.provenance.get(what)
        said += [_words(each) for each in later if isinstance(each, dict)] if isinstance(later, list) else []
    return [*filter(None, said), *_analyze(run)]


def _words(found: dict[str, Any]) -> str:
    command = found.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


def _analyze(run: RunFiles) -> list[str]:
    names = [name for name in run.analyses if name != AGAINST]
    if set(names) <= set(COME_WITH_THE_RUN):
        return []
    words = ["ccvr", "analyze", "RUN", "--only", *names]
    if AGAINST in run.analyses:
        words += ["--against", str(run.analyses[AGAINST][1].get("run", "OTHER"))]
    if "tsne" in run.analyses:
        words += ["--points", str(len(run.analyses["tsne"][0]["points"]))]
    return [shlex.join(words)]
