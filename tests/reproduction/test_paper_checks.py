"""What the paper sees, looked for in numbers whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from ccvr.report.groups import Spread
from ccvr.report.runs import RunFiles
from ccvr.reproduction.cells import SCALES, Scale
from ccvr.reproduction.comparison import TableRow
from ccvr.reproduction.paper_checks import FINDINGS
from ccvr.reproduction.paper_figures import DRAWS, Shown
from tests.report.conftest import spec

QUICK = SCALES["quick"]


@pytest.fixture
def make_shown(make_run):
    """A run with these numbers; scale and method as asked for."""
    plain = RunFiles.read(make_run("run"))

    def make(method="FedAvg", scale=QUICK, kind="dirichlet", **analyses):
        kept = {name: (arrays, {**about, **analyses.get(name, {})}) for name, (arrays, about) in plain.analyses.items()}
        made = spec(partition__kind=kind, training__algorithm=method.lower())
        files = replace(plain, name=method, spec=made, analyses=kept)
        return Shown("cell", method, "CIFAR-10, α = 0.1", scale, files)

    return make


def told(figure, runs=(), rows=(), place=0):
    """The verdicts of a finding, without what the paper says."""
    return FINDINGS[figure][place].text(runs, rows).partition(". ")[2]


def means(*values):
    return {"layers": ["model.layer1.2", "layer2", "head"], "mean": list(values)}


def test_findings_are_of_figures():
    assert set(FINDINGS) < set(DRAWS)


def test_both_verdicts_each_with_its_numbers(make_shown):
    runs = [make_shown(cka=means(0.9, 0.8, 0.7)), make_shown("MOON", cka=means(0.9, 0.7, 0.7))]
    assert told("figure1", runs) == (
        "Ours shows it: FedAvg, quick scale (layer1 0.900, layer2 0.800, head 0.700). "
        "Ours does not show it: MOON, quick scale (layer1 0.900, layer2 0.700, head 0.700)."
    )
    assert told("figure1") == "Ours cannot tell yet."


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.9, 0.8, 0.79), "Ours shows it"), ((0.9, 0.8, 0.8), "Ours does not"), ((0.9, 0.6, 0.7), "Ours does not")],
)
def test_the_head_is_the_least_alike(make_shown, values, verdict):
    iid = make_shown(kind="iid", cka=means(0.9, 0.8, 0.1))
    assert told("figure2", [make_shown(cka=means(*values)), iid], place=1).startswith(verdict)
    assert told("figure2", [iid], place=1) == "Ours cannot tell yet."


def test_less_alike_than_iid_in_all_layers_and_at_the_same_scale(make_shown):
    iid = make_shown(kind="iid", cka=means(0.95, 0.9, 0.8))
    less, same = make_shown(cka=means(0.9, 0.7, 0.6)), make_shown(cka=means(0.95, 0.7, 0.6))
    assert told("figure2", [less, iid]) == "Ours shows it: FedAvg, quick scale (by -0.200 to -0.050)."
    assert told("figure2", [same, iid]).startswith("Ours does not show it")
    assert told("figure2", [replace(less, scale=SCALES["paper"]), iid]) == "Ours cannot tell yet."


def test_methods_beside_fedavg(make_shown):
    plain = make_shown(cka=means(0.9, 0.8, 0.7))
    prox, moon = make_shown("FedProx", cka=means(0.91, 0.82, 0.71)), make_shown("MOON", cka=means(0.95, 0.9, 0.7))
    normed = make_shown("FedAvg + clsnorm", cka=means(0.99, 0.99, 0.69))
    runs = [plain, prox, moon, normed]
    assert told("figure11", runs) == (
        "Ours shows it: FedProx, quick scale (by +0.010 to +0.020). "
        "Ours does not show it: MOON, quick scale (by +0.000 to +0.100)."
    )
    assert told("figure11", runs, place=1) == ("Ours shows it: FedAvg + clsnorm, quick scale (0.690, FedAvg 0.700).")


def with_norms(shown, *rounds, counts):
    """Norms of each client's head by round."""
    records = [
        {"round": number, "clients": [{"client": c, "head_row_norms": own} for c, own in enumerate(norms)]}
        for number, norms in enumerate(rounds, start=1)
    ]
    return replace(shown, files=replace(shown.files, rounds=records, label_counts=np.array(counts)))


def test_norms_follow_samples_by_their_correlation(make_shown):
    counts = [[0, 10, 20], [20, 10, 0]]
    follows = with_norms(make_shown(), [[1, 2, 3], [1, 2, 3]], [[3, 2, 1], [1, 2, 3]], counts=[counts[0]] * 2)
    against = with_norms(make_shown("MOON"), [[1, 2, 3], [1, 2, 3]], counts=[counts[1]] * 2)
    assert told("figure3", [follows]) == (
        "Ours shows it: FedAvg, quick scale (correlation 1.00 in round 1, 0.00 in the last)."
    )
    assert told("figure3", [against]).startswith("Ours does not show it: MOON, quick scale (correlation -1.00")
    assert told("figure12", [against]) == "Ours cannot tell yet.", "it is about FedAvg and FedProx"
    assert told("figure12", [follows, against], place=1) == (
        "Ours shows it: MOON, quick scale (correlation -1.00, FedAvg 1.00)."
    )
    nearly = with_norms(make_shown("MOON"), [[1, 2, 3.1], [1, 2, 3.1]], counts=[counts[0]] * 2)
    assert told("figure12", [follows, nearly], place=1).startswith("Ours does not show it"), "0.999 is 1 and noise"


def test_unevenness_of_the_last_round(make_shown):
    counts = [[1, 1], [1, 1]]
    uneven = with_norms(make_shown(), [[1.0, 1.0]] * 2, [[1.0, 3.0]] * 2, counts=counts)
    even = with_norms(make_shown(kind="iid"), [[1.0, 9.0]] * 2, [[2.0, 2.0]] * 2, counts=counts)
    assert told("figure3", [uneven, even], place=1) == (
        "Ours shows it: FedAvg, quick scale (deviation over mean 0.500, iid 0.000)."
    )
    little = with_norms(make_shown(), [[1.0, 1.0]] * 2, [[1.0, 3.1]] * 2, counts=counts)
    iid = with_norms(make_shown(kind="iid"), [[1.0, 1.0]] * 2, [[1.0, 3.0]] * 2, counts=counts)
    assert "Ours does not show it" in told("figure3", [little, iid], place=1)


@pytest.mark.parametrize(("after", "verdict"), [([2.0, 2.0], "Ours shows it"), ([1.0, 9.0], "Ours does not show it")])
def test_norms_before_and_after(make_shown, after, verdict):
    shown = make_shown()
    analyses = {"norms": ({"norms": np.array([[1.0, 3.0], after])}, {"heads": ["uncalibrated", "ccvr"]})}
    text = told("figure10", [replace(shown, files=replace(shown.files, analyses=analyses))])
    assert text.startswith(f"{verdict}: FedAvg, quick scale (deviation over mean 0.500 before, ")


def test_separability_needs_four_runs_of_a_scale_and_goes_by_what_whole_data_reach(make_shown):
    runs = []
    for distance, before, reached in [(0.1, 50.0, 60.0), (0.2, 52.0, 61.0), (0.3, 54.0, 62.0), (0.4, 56.0, 63.0)]:
        run = make_shown(separability={"mean": distance})
        results = {"accuracy": {"uncalibrated": before, "oracle": reached}}
        runs.append(replace(run, files=replace(run.files, results=results)))
    assert told("figure6", runs) == (
        "Ours shows it: 4 runs, quick scale (correlation +1.00 with the accuracy, -1.00 with the gain)."
    )
    assert told("figure6", [*runs[:3], replace(runs[3], scale=Scale(10, 1))]) == "Ours cannot tell yet."


def curve(setting="CIFAR-10, α = 0.1", **accuracies):
    heads = {name.replace("_", "-"): value for name, value in accuracies.items()}
    method = {"uncalibrated": "FedAvg"}
    return [
        TableRow("cell", head, setting, method.get(head, "other"), None, Spread(value, None), scale=QUICK)
        for head, value in heads.items()
    ]


def test_curves():
    amounts = {"uncalibrated": 50.0, "oracle_partial_100": 53.0, "oracle": 55.0}
    assert told("figure4", rows=curve(**amounts)).endswith(
        "Ours shows it: FedAvg, α = 0.1, quick scale (+3.00 of +5.00)."
    )
    half = curve(**{**amounts, "oracle_partial_100": 52.5})
    assert "Ours does not show it" in told("figure4", rows=half)
    worse = curve(**{**amounts, "oracle_partial_100": 49.6, "oracle": 49.0})
    assert told("figure4", rows=worse).endswith("Ours cannot tell yet."), "where nothing is gained"
    equal = curve(uncalibrated=49.35, ccvr_m50=49.35 + 1e-12, ccvr_m2000=49.35 + 2e-12)
    assert "does not show" in told("figure7", rows=equal)
    assert "does not show" in told("figure7", rows=equal, place=1)
    swept = {"uncalibrated": 50.0, "ccvr_m50": 51.0, "ccvr_m2000": 50.5}
    for figure in ("figure7", "figure14"):
        assert told(figure, rows=curve(**swept)) == "Ours shows it: FedAvg, α = 0.1, quick scale (+1.00)."
        assert told(figure, rows=curve(**swept), place=1) == (
            "Ours does not show it: FedAvg, α = 0.1, quick scale (51.00, 50.50)."
        )
        light = curve("CIFAR-10, α = 0.5", **swept)
        assert told(figure, rows=light, place=1) == "Ours cannot tell yet.", "the paper says it of 0.05 and 0.1"
