"""Our numbers beside the paper's, computed by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.report.published import published
from ccvr.reproduction.cells import CELLS, Scale
from ccvr.reproduction.claims import CLAIMS, judge
from ccvr.reproduction.comparison import Numbers, compare, method_of, setting_of
from ccvr.reproduction.items import ITEMS
from ccvr.reproduction.rounds import by_round
from tests.reproduction.made import PAPER, QUICK, trained, trainings

CELL = "cifar10-a0.1-fedavg"


def row(found, cell, head, scale=None):
    return Numbers(found).row((cell, head), published("table2").get((cell, head)), scale)


def test_mean_spread_gain_and_difference():
    found = trainings(
        trained(CELL, {"uncalibrated": 50.0, "ccvr": 56.0}, seed=0),
        trained(CELL, {"uncalibrated": 52.0, "ccvr": 60.0}, seed=1),
    )
    entry = row(found, CELL, "ccvr")
    assert (entry.ours.mean, entry.ours.std) == (58.0, pytest.approx(8**0.5))
    assert (entry.gain.mean, entry.gain.std) == (7.0, pytest.approx(2**0.5))
    assert entry.difference == pytest.approx(58.0 - 62.68)
    assert (entry.seeds, entry.gain_seeds, entry.scale) == (2, 2, QUICK)
    assert row(found, CELL, "uncalibrated").gain is None


def test_a_seed_that_lacks_a_head_is_left_out_of_it_alone():
    found = trainings(
        trained(CELL, {"uncalibrated": 50.0, "ccvr": 56.0}, seed=0), trained(CELL, {"uncalibrated": 60.0}, seed=1)
    )
    assert (row(found, CELL, "uncalibrated").seeds, row(found, CELL, "ccvr").seeds) == (2, 1)
    assert row(found, CELL, "ccvr").gain.mean == 6.0, "over its own uncalibrated model, not over the mean of both"


def test_a_regulariser_gains_over_the_plain_cell_of_the_same_seed_and_scale():
    regularised = f"{CELL}-clsnorm"
    found = trainings(
        trained(CELL, {"uncalibrated": 50.0}, seed=0),
        trained(CELL, {"uncalibrated": 70.0}, seed=0, scale=PAPER),
        trained(regularised, {"uncalibrated": 51.0}, seed=0),
        trained(regularised, {"uncalibrated": 90.0}, seed=1),
    )
    entry = row(found, regularised, "uncalibrated")
    assert (entry.ours.mean, entry.seeds) == (70.5, 2)
    assert (entry.gain.mean, entry.gain_seeds) == (1.0, 1)


def test_the_largest_scale_is_shown_unless_one_is_asked_for():
    found = trainings(
        trained(CELL, {"uncalibrated": 50.0, "lda": 60.0}),
        trained(CELL, {"uncalibrated": 40.0}, scale=Scale(10, 1)),
        trained(CELL, {"uncalibrated": 58.0}, scale=PAPER),
    )
    assert row(found, CELL, "uncalibrated").scale == PAPER
    assert row(found, CELL, "lda").scale == QUICK, "the largest that has it"
    assert row(found, CELL, "uncalibrated", QUICK).ours.mean == 50.0
    assert row(found, CELL, "lda", PAPER).ours is None
    only_short = trainings(trained(CELL, {"uncalibrated": 40.0}, scale=Scale(10, 1)))
    assert row(only_short, CELL, "uncalibrated").scale == Scale(10, 1)


def test_seeds_of_different_scales_are_never_averaged():
    found = trainings(
        trained(CELL, {"uncalibrated": 50.0}, seed=0), trained(CELL, {"uncalibrated": 58.0}, seed=1, scale=PAPER)
    )
    entry = row(found, CELL, "uncalibrated")
    assert (entry.ours.mean, entry.ours.std, entry.seeds) == (58.0, None, 1)


def test_of_two_trainings_that_are_the_same_the_first_counts():
    found = trainings(trained(CELL, {"uncalibrated": 50.0}), trained(CELL, {"uncalibrated": 99.0}))
    assert row(found, CELL, "uncalibrated").ours.mean == 50.0


def test_a_table_is_sorted_by_setting_and_keeps_the_papers_order_within():
    rows = compare(ITEMS["table2"].entries, trainings(), None)
    assert len(rows) == 60
    settings = list(dict.fromkeys(each.setting for each in rows))
    assert settings[:2] == ["CIFAR-10, α = 0.5", "CIFAR-10, α = 0.1"]
    assert [each.method for each in rows[:5]] == ["FedAvg", "FedProx", "FedAvgM", "MOON", "FedAvg + CCVR"]
    assert all(each.ours is None for each in rows)


def test_accuracy_after_each_tenth_of_the_rounds():
    def with_rounds(cell, accuracies, **options):
        found = trained(cell, {"uncalibrated": accuracies[-1]}, **options)
        rounds = [{"round": number, "accuracy": value} for number, value in enumerate(accuracies, start=1)]
        return replace(found, files=replace(found.files, rounds=rounds))

    long = [float(number) if number != 20 else None for number in range(1, 101)]
    found = trainings(
        with_rounds("cifar10-a0.5-fedavg", [1.0] * 10),
        with_rounds(CELL, long, scale=PAPER),
        with_rounds(CELL, [float(number) for number in range(10)]),
        with_rounds(CELL, [float(number) + 4 for number in range(10)], seed=1),
        with_rounds("cifar10-a0.5-moon", [float(number) for number in range(1, 26)], scale=Scale(25, 1)),
    )
    cells = [CELL, "cifar10-a0.5-fedavg", "cifar10-a0.5-moon"]
    sheet = by_round("T", cells, found, None, "rounds")
    assert [row[:4] for row in sheet.rows] == [
        ["CIFAR-10, α = 0.1", "FedAvg", "paper", "1"],
        ["CIFAR-10, α = 0.1", "FedAvg", "quick", "2"],
        ["CIFAR-10, α = 0.5", "FedAvg", "quick", "1"],
        ["CIFAR-10, α = 0.5", "MOON", "25 × 1", "1"],
    ]
    assert sheet.rows[0][4:] == ["10.00", "–", *(f"{tenth}0.00" for tenth in range(3, 11))], "not evaluated after 20"
    assert sheet.rows[1][4:] == [f"{number + 2}.00" for number in range(10)]
    assert sheet.rows[3][4:] == [f"{after}.00" for after in (3, 5, 8, 10, 13, 15, 18, 20, 23, 25)], "of 2.5: after 3"
    assert len(by_round("T", cells, found, QUICK, "rounds").rows) == 2


def test_names_for_people():
    assert setting_of(CELLS["cifar10-a0.1-moon-n50"]) == "CIFAR-10, α = 0.1, 50 clients"
    assert setting_of(CELLS["cifar10-iid-fedavg"]) == "CIFAR-10, iid"
    assert setting_of(CELLS["cifar100-a0.5-fedavg"]) == "CIFAR-100, α = 0.5"
    assert setting_of(CELLS["cifar100-a0.5-fedavg-simple-cnn"]) == "CIFAR-100, α = 0.5, simple-cnn"
    both = CELLS["cifar10-a0.1-fedavg-clsnorm-clsprox"]
    assert method_of(both, "uncalibrated") == "FedAvg + clsnorm + clsprox"
    assert method_of(CELLS[CELL], "ccvr-m50") == "FedAvg + CCVR, M_c = 50"
    assert method_of(CELLS[CELL], "oracle-partial-100") == "FedAvg + 100 real samples per class"


# --- claims -----------------------------------------------------------------------------------------------------------

ALPHAS = {"0.5": 2.0, "0.1": 5.0, "0.05": 4.0}
ALGORITHMS = ("fedavg", "fedprox", "fedavgm", "moon")


def a_world(change=None, seed=0):
    """Trainings on which every claim holds, but for what ``change`` says: {(cell, head): accuracy}."""
    found = []
    for alpha, gain in ALPHAS.items():
        for algorithm in ALGORITHMS:
            cell = f"cifar10-a{alpha}-{algorithm}"
            found.append((cell, {"uncalibrated": 50.0, "ccvr": 50.0 + gain, "oracle": 51.0 + gain}))
        for name in ("clsnorm", "clsprox", "clsnorm-clsprox"):
            found.append((f"cifar10-a{alpha}-fedavg-{name}", {"uncalibrated": 50.5}))
    for (cell, head), accuracy in (change or {}).items():
        dict(found)[cell][head] = accuracy
    return [trained(cell, accuracies, seed=seed) for cell, accuracies in found]


def verdicts(found):
    sheet, _ = judge(trainings(*found), None)
    return {text.partition(". ")[2]: ours for text, _, _, _, ours, _ in sheet.rows}


def test_every_claim_holds_on_the_published_numbers():
    sheet, details = judge(trainings(), None)
    assert [each[-1] for each in sheet.rows] == ["holds"] * len(CLAIMS)
    assert [each[4] for each in sheet.rows] == ["not trained"] * len(CLAIMS)
    assert {each[-1] for each in details.rows} == {"holds"}
    assert [each[6] for each in details.rows if each[1] == "FedAvg + CCVR, α = 0.1 > α = 0.5"] == ["+4.13 : +2.41"]


def test_a_world_in_which_every_claim_holds():
    assert set(verdicts(a_world()).values()) == {"holds"}


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({("cifar10-a0.5-moon", "ccvr"): 50.0}, ["CCVR improves every algorithm at every alpha"]),
        ({("cifar10-a0.1-fedprox", "ccvr"): 52.0}, ["CCVR gains more at alpha 0.1 than at 0.5"]),
        ({("cifar10-a0.05-fedavgm", "ccvr"): 51.9}, ["CCVR gains more at alpha 0.05 than at 0.5"]),
        ({("cifar10-a0.5-fedavgm", "oracle"): 51.99}, ["The oracle (whole data) is at least as good as CCVR"]),
        ({("cifar10-a0.1-fedavg-clsprox", "uncalibrated"): 55.5}, ["Regularising gains less than CCVR"]),
        (
            {("cifar10-a0.1-fedavg-clsprox", "uncalibrated"): 57.0},
            ["Regularising gains less than calibrating with whole data", "Regularising gains less than CCVR"],
        ),
        ({("cifar10-a0.5-fedavgm", "oracle"): 52.0}, []),
    ],
)
def test_one_number_turns_the_verdict(change, fails):
    found = verdicts(a_world(change))
    assert [text for text, verdict in found.items() if verdict == "does not hold"] == fails
    assert {verdict for text, verdict in found.items() if text not in fails} == {"holds"}


MORE, BEST = "FedAvg + CCVR, α = 0.1 > α = 0.5", "FedAvg + whole data ≥ FedAvg + CCVR, α = 0.1"
COMPARISONS = {each.name: each for claim in CLAIMS for each in claim.comparisons}


def two_cells(uneven, even):
    """FedAvg at alpha 0.1 and 0.5, each by seed as the accuracies of some heads, in test samples of 10,000."""
    cells = {"cifar10-a0.1-fedavg": uneven, "cifar10-a0.5-fedavg": even}
    found = [
        trained(cell, {head: images / 100 for head, images in heads.items()}, seed=seed)
        for cell, seeds in cells.items()
        for seed, heads in enumerate(seeds)
    ]
    outcomes = {name: COMPARISONS[name].ours(Numbers(trainings(*found)), QUICK) for name in (MORE, BEST)}
    return {name: f"{each.figures} {each.verdict}" for name, each in outcomes.items()}


def test_equal_gains_are_a_tie_whatever_floats_make_of_them():
    """59.68 − 52.90 is more than 59.80 − 53.02 in binary."""
    assert 59.68 - 52.90 != 59.80 - 53.02
    one = {"uncalibrated": 5290, "ccvr": 5968, "oracle": 5968}
    other = {"uncalibrated": 5302, "ccvr": 5980, "oracle": 5980}
    assert two_cells([one], [other])[MORE] == "+6.78 : +6.78 does not hold"


images = st.integers(0, 10_000)


@given(st.lists(st.tuples(images, images, images), min_size=1, max_size=5), st.data())
def test_ties_are_ties_and_one_image_decides(seeds, data):
    """As fractions of whole images say it: > does not hold of equals, ≥ does."""
    uneven = [{"uncalibrated": u, "ccvr": c, "oracle": o} for u, c, o in seeds]
    even = [
        {"uncalibrated": 10_000 - c, "ccvr": 10_000 - u, "oracle": o} for u, c, o in data.draw(st.permutations(seeds))
    ]
    oracles = data.draw(st.permutations([c for _, c, _ in seeds]))
    equal = [{**heads, "oracle": oracle} for heads, oracle in zip(uneven, oracles, strict=True)]
    found = two_cells(equal, even)
    assert found[MORE].endswith(" does not hold")
    assert found[BEST].endswith(" holds")
    more = [{**uneven[0], "ccvr": uneven[0]["ccvr"] + 1}, *uneven[1:]]
    assert two_cells(more, even)[MORE].endswith(" holds")
    less = [{**equal[0], "ccvr": equal[0]["ccvr"] + 1}, *equal[1:]]
    assert two_cells(less, even)[BEST].endswith(" does not hold")


def test_what_is_not_trained_does_not_look_like_a_failure():
    sheet, _ = judge(trainings(trained(CELL, {"uncalibrated": 50.0, "ccvr": 55.0})), None)
    assert sheet.rows[1][2:5] == ["–", "–", "not trained"]


def test_a_scale_at_which_only_a_regulariser_was_trained_is_judged():
    half = trained(f"{CELL}-clsnorm", {"uncalibrated": 50.0}, scale=Scale(50, 10))
    sheet, _ = judge(trainings(half), None)
    assert {row[1] for row in sheet.rows} == {"half"}


def test_what_is_missing_is_said():
    found = verdicts([each for each in a_world() if "moon" not in each.files.name])
    assert found["CCVR gains more at alpha 0.1 than at 0.5"] == "holds, as far as trained (1 of 4 missing)"


def test_figures_seeds_and_scale_stand_beside_each_verdict():
    _, details = judge(trainings(*a_world(), *a_world(seed=1)), None)
    line = next(each for each in details.rows if each[1] == "FedAvg + CCVR, α = 0.1 > 0")
    assert line[2:6] == ["quick", "2", "+5.00 : 0", "holds"]


def test_scales_are_judged_apart():
    larger = [
        trained("cifar10-a0.1-fedavg", {"uncalibrated": 60.0, "ccvr": 59.0, "oracle": 61.0}, scale=PAPER),
        trained("cifar10-a0.5-fedavg", {"uncalibrated": 60.0, "ccvr": 70.0, "oracle": 71.0}, scale=PAPER),
    ]
    sheet, _ = judge(trainings(*a_world(), *larger), None)
    of_first = [each[1:5] for each in sheet.rows if each[0].startswith("1. CCVR improves")]
    assert of_first == [
        ["paper", "1", "1 of 2", "does not hold"],
        ["quick", "1", "12 of 12", "holds"],
    ]


def test_means_are_over_the_seeds_that_both_sides_have():
    found = [
        trained(CELL, {"uncalibrated": 50.0, "ccvr": 55.0}, seed=0),
        trained(CELL, {"uncalibrated": 50.0, "ccvr": 51.0}, seed=1),
        trained(f"{CELL}-clsnorm", {"uncalibrated": 54.0}, seed=0),
    ]
    _, details = judge(trainings(*found), QUICK)
    line = next(each for each in details.rows if each[1] == "FedAvg + CCVR > FedAvg + clsnorm, α = 0.1")
    assert line[3:6] == ["1", "+5.00 : +4.00", "holds"], "with the other seed it would be +3 : +4"


def test_a_comparison_takes_seeds_that_both_sides_have():
    plain = trained(CELL, {"uncalibrated": 50.0, "ccvr": 55.0}, seed=0)
    regularised = trained(f"{CELL}-clsnorm", {"uncalibrated": 51.0}, seed=1)
    _, details = judge(trainings(plain, regularised), QUICK)
    assert {each[5] for each in details.rows if each[0] == "claim 6"} == {"not trained"}
