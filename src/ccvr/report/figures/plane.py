"""Test features in the plane."""

import numpy as np

from ccvr.report.figures.panel import MOST_NAMES, Panel, sheet
from ccvr.report.palette import COLOURS, MARKERS
from ccvr.report.runs import RunFiles
from ccvr.report.text import shown


def tsne(run: RunFiles) -> list[Panel]:
    """Three times the same points: by their class, and by what each head takes them for."""
    if "tsne" not in run.analyses:
        return []
    arrays, about = run.analyses["tsne"]
    points, truth = arrays["points"], arrays["truth"]
    titles = {"truth": "true class", "before": "predicted before", "after": f"predicted after ({about['after']})"}
    panels = []
    for key, title in titles.items():
        right = 100 * float(np.mean(arrays[key] == truth))
        alt = f"t-SNE of {len(points):,} test features, coloured by {title}; {right:.1f} % agree with the true class."
        figure, axes = sheet(4.3)
        for label in np.unique(arrays[key]):
            chosen = points[arrays[key] == label]
            colour, marker = COLOURS[label % len(COLOURS)], MARKERS[(label // len(COLOURS)) % len(MARKERS)]
            name = shown(run.class_names[label], 12)
            axes.plot(*chosen.T, marker, color=colour, markersize=2.2, mew=0, rasterized=True, label=name)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if len(run.class_names) <= MOST_NAMES:
            figure.legend(loc="outside lower center", ncols=5, markerscale=2.5, handletextpad=0.1, columnspacing=0.8)
        panels.append(Panel(figure, alt, title))
    return panels
