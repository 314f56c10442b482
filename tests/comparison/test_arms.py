"""Comparisons of made-up runs: numbers, verdicts in words, the file and the page."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from ccvr.comparison.arms import Arm, ArmRun, Comparison
from ccvr.comparison.page import comparison_page
from ccvr.comparison.tables import tables_of
from ccvr.core.errors import RunError
from ccvr.report.runs import RunFiles
from tests.report.conftest import record, results, spec, write_run
from tests.report.hostile import HOSTILE


def made(seed: int, before: float, after: float, **changes: object) -> ArmRun:
    run = ArmRun(seed, {"uncalibrated": before, "ccvr": after}, "ccvr", {}, 2_000_000, 10.0)
    return replace(run, **changes)  # type: ignore[arg-type]


def compared(*arms: Arm, seeds: tuple[int, ...] = (0, 1, 2)) -> Comparison:
    return Comparison("digits-a0.1", "digits", seeds, arms, {"data": {"name": "digits"}})


PLAIN = Arm("fedavg", (made(0, 50, 60), made(1, 52, 61), made(2, 54, 62)))
BETTER = Arm("scaffold", (made(0, 55.0, 60.5), made(1, 57.1, 59.9), made(2, 58.9, 62.6)))


def test_the_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    scores = {"mean": 71.0, "worst": 50.0, "p10": 55.0}
    row = {"method": "prior", "options": {}, "head": "ccvr", "clients": []}
    others = [{**scores, "mean": 70.0}, {"mean": None, "worst": None, "p10": None}]
    rows = {str(number): {**row, "accuracy": each} for number, each in enumerate(others)}
    path = write_run(tmp_path / "run", made=spec(3), said=results(personal_accuracy=scores, personal=rows))
    lines = [record(number) for number in (1, 2, 3)]
    for line in lines:
        for client in line["clients"]:
            client |= {"bytes_down": 100, "bytes_up": 30 + client["client"]}
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = ArmRun.of(RunFiles.read(path))
    assert found.accuracy == {"uncalibrated": 61.5, "ccvr": 67.6251, "oracle": 70.0}
    assert (found.seed, found.before, found.after, found.personal) == (3, 61.5, 67.6251, {"trained": 71.0, "0": 70.0})
    assert found.bytes == 3 * (4 * 130 + 0 + 1 + 2 + 3) + 10, "both ways of all clients and rounds, and the statistics"
    assert found.seconds == pytest.approx(3 * 0.5 + 0.1)


def test_tables_have_mean_and_deviation_and_only_columns_that_are_known() -> None:
    arms, differences = tables_of(compared(PLAIN, BETTER))
    assert list(arms.headers) == ["algorithm", "seeds", "before", "after", "gain", "MB", "seconds"]
    befores = [run.before for run in BETTER.runs]
    assert arms.rows[1][:3] == ["scaffold", "3", f"{mean(befores):.2f} ± {stdev(befores):.2f}"]
    assert arms.values[0]["MB"] == 2.0
    assert [row[:4] for row in differences.rows] == [
        ["before", "scaffold", "3", "+5.00"],
        ["after", "scaffold", "3", "+0.00"],
    ]


def test_other_heads_have_columns_of_their_own() -> None:
    def heads(first: float, second: float) -> Arm:
        runs = (
            made(s, 50, 60, accuracy={"uncalibrated": 50.0, "ccvr": 60.0, "lda": first, "MB": second}) for s in (0, 1)
        )
        return Arm("fedavg", tuple(runs))

    table, *_ = tables_of(compared(heads(61, 62), heads(63, 64)))
    assert list(table.headers) == ["algorithm", "seeds", "before", "after", "gain", "lda", "head MB", "MB", "seconds"]
    assert [row[5:8] for row in table.rows] == [
        ["61.00 ± 0.00", "62.00 ± 0.00", "2.00 ± 0.00"],
        ["63.00 ± 0.00", "64.00 ± 0.00", "2.00 ± 0.00"],
    ]
    own = Arm("fedper", (made(0, 50, 60, personal={"trained": 80.0, "prior": 81.0}), made(1, 50, 60)))
    table, *_ = tables_of(compared(PLAIN, own, seeds=(0, 1)))
    assert list(table.headers)[5:7] == ["MB", "seconds"], "what a run lacks is no column"
    own = replace(own, runs=own.runs[:1])
    table, *_ = tables_of(compared(PLAIN, own, seeds=(0,)))
    assert [row[5:7] for row in table.rows] == [["–", "–"], ["80.00", "81.00"]]
    assert list(table.headers)[5:7] == ["personal trained", "personal prior"]
    mixed = Arm("moon", (made(0, 50, 60, deployed="uncalibrated"),))
    assert "ccvr" in tables_of(compared(PLAIN, mixed))[0].headers, (
        "where runs deploy different heads, each has its column"
    )


def test_what_is_more_than_noise_is_said() -> None:
    assert compared(PLAIN, BETTER).verdicts() == [
        "scaffold is better than fedavg before calibration: +5.00 points, more than noise (p < 0.001)."
    ]
    assert compared(BETTER, PLAIN).verdicts()[0].startswith("fedavg is worse than scaffold before calibration: -5.00")
    noise = Arm("moon", (made(0, 51, 60), made(1, 51, 61), made(2, 54, 62.5)))
    assert compared(PLAIN, noise).verdicts() == ["No difference to fedavg is more than noise."]


def test_many_comparisons_make_a_difference_less_clear() -> None:
    """p is 0.011 by itself; among eight tests it is not clear."""
    clear = Arm("moon", (made(0, 51.0, 60.1), made(1, 53.2, 60.8), made(2, 55.45, 62)))
    others = [Arm(f"other{i}", (made(0, 51, 60.1), made(1, 51, 60.8), made(2, 54.5, 62))) for i in range(3)]
    alone, among = compared(PLAIN, clear), compared(PLAIN, clear, *others)
    assert (alone.differences()[0].verdict, among.differences()[0].verdict) == ("better", "not clear")
    assert among.differences()[0].paired == alone.differences()[0].paired, "the interval is each one's own"


def test_one_seed_says_nothing_about_noise() -> None:
    first, second = (Arm(arm.name, arm.runs[:1]) for arm in (PLAIN, BETTER))
    found = compared(first, second, seeds=(0,))
    said = "Nothing can be said about noise: that takes 3 seeds of two algorithms. Give more --seeds."
    assert found.verdicts() == [said]
    assert len(tables_of(found)) == 1
    assert [each.verdict for each in found.differences()] == ["cannot be said"] * 2
    assert "±" not in " ".join(tables_of(found)[0].rows[0])


def test_runs_are_paired_by_seed_and_what_has_no_partner_is_left_out() -> None:
    late = Arm("moon", (BETTER.runs[2], made(7, 99, 99), BETTER.runs[0]))
    before, _ = compared(PLAIN, late).differences()
    assert (before.paired.n, before.paired.mean) == (2, pytest.approx((58.9 - 54 + 55.0 - 50) / 2))
    assert compared(PLAIN, Arm("none", ())).differences() == []
    assert tables_of(compared(PLAIN, Arm("none", ())))[0].rows[1][2:] == ["–"] * 5


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found, path = compared(PLAIN, BETTER), tmp_path / "c.json"
    path.write_bytes(found.to_bytes())
    assert Comparison.read(path) == found
    assert json.loads(path.read_text())["differences"][0]["verdict"] == "better"


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"arms": 3},
        {"arms": []},
        {"arms": [{"name": "a", "runs": [{"seed": 0}]}]},
        {"arms": [{"name": 3, "runs": []}]},
        {"arms": [{"name": "a", "runs": [{**asdict(PLAIN.runs[0]), "accuracy": {"uncalibrated": "x"}}]}]},
        {"arms": [{"name": "a", "runs": [{**asdict(PLAIN.runs[0]), "seconds": None}]}]},
        {"spec": None},
        {"seeds": []},
        {"seeds": ["0"]},
    ],
)
def test_other_files_are_no_comparisons(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(json.loads(compared(PLAIN, BETTER).to_bytes()) | change))
    with pytest.raises(RunError, match=r"c\.json is no comparison \(.+\)\. Give a file or a folder"):
        Comparison.read(path)


def test_the_page_has_the_tables_and_escapes_what_runs_say(tmp_path: Path) -> None:
    bad = HOSTILE[1]
    run = RunFiles.read(write_run(tmp_path / "run", made=spec(0, training__algorithm=bad)))
    arms = Arm(bad, (ArmRun.of(run),)), replace(PLAIN, runs=PLAIN.runs[:1])
    page = comparison_page(compared(*arms, seeds=(0,)), {bad: [run]})
    assert bad not in page
    assert "Nothing can be said about noise" in page
    assert "61.50" in page
    assert 'id="figure-accuracy"' in page
    for outside in ("http:", "https:", "<img", "@import"):
        assert outside not in page.replace("http://www.w3.org", "")


def test_what_only_an_earlier_file_has_is_kept() -> None:
    new = compared(replace(PLAIN, runs=(made(1, 70, 80),)), seeds=(1,))
    union = new.with_kept(compared(PLAIN, BETTER))
    assert union.seeds == (0, 1, 2)
    assert [arm.name for arm in union.arms] == ["fedavg", "scaffold"]
    assert [run.before for run in union.arms[0].runs] == [50, 70, 54], "of a seed that both have the new run"
    assert union.arms[1] == BETTER


@pytest.mark.parametrize("clients", [3, [{"bytes_up": "a"}], [5]])
def test_damaged_rounds_are_one_line(clients: object, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    lines = [{**record(number), "clients": clients} for number in (1, 2, 3)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match=r"rounds\.jsonl is damaged: line 1: clients.+\. Restore it, or delete it"):
        ArmRun.of(RunFiles.read(path))


def test_rounds_that_are_missing_are_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "rounds.jsonl").write_text(json.dumps(record(1)) + "\n")
    with pytest.raises(RunError, match=r"rounds\.jsonl has 1 rounds of 3\."):
        ArmRun.of(RunFiles.read(path))
