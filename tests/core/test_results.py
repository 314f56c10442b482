"""results.json: one schema, read with checks and written in the same order."""

import json
from pathlib import Path
from typing import Any

import pytest

from ccvr.core.errors import RunError
from ccvr.core.results import ClientScores, check_results, empty_results, personal_rows, with_heads
from ccvr.core.run import RunFolder
from tests.report.conftest import results

RECORDS = sorted((Path(__file__).parents[2] / "results").rglob("*-s*.json"))


OWN: Any = {
    "options": {"smoothing": 1.0},
    "head": "ccvr",
    "accuracy": {"mean": 90.5, "worst": 80.0, "p10": 81.0},
    "clients": [90.5, None],
}


def changed(*path: str, value: Any) -> Any:
    """Results in which the value at a path is another; ``...`` deletes it."""
    made = json.loads(json.dumps(results()))
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    if value is ...:
        del inner[path[-1]]
    return made


def test_every_record_of_ours_fits_the_schema() -> None:
    assert len(RECORDS) > 30
    for path in RECORDS:
        content = json.loads(path.read_text(encoding="utf-8"))["results"]
        assert check_results(content, path, "") == content


def test_what_is_written_is_read_with_the_same_keys_in_the_same_order(tmp_path: Path) -> None:
    folder, said = RunFolder(tmp_path), check_results(results(), tmp_path, "")
    said["validation_accuracy"] = {"ccvr": 1.5}
    said["missing"] = {"train": {"3": "it is silent"}}
    said["personal"] = {"prior": {"method": "prior", **OWN}}
    said["personal_accuracy"] = {"mean": 80.0, "worst": None, "p10": 50.25}
    folder.write_results(said)
    assert list(folder.read_results().items()) == list(said.items())
    folder.write_json(folder.results, {**said, "later": [1]})
    assert list(folder.read_results())[-1] == "later", "keys of later versions stay"


def test_own_models_of_old_and_new_versions() -> None:
    """The scores that old versions wrote are one more row, unless the file has that row."""
    said, scores = check_results(results(), Path(), ""), ClientScores(mean=80.0, worst=None, p10=50.25)
    assert personal_rows(said) == {}
    said["personal_accuracy"] = scores
    assert personal_rows(said)["trained"]["accuracy"] == scores
    said["personal"] = {"prior": {"method": "prior", **OWN}}
    assert list(personal_rows(said)) == ["trained", "prior"]
    said["personal"] = {"trained": {"method": "fedper", **OWN}}
    assert personal_rows(said) == said["personal"]


def test_the_keys_of_a_new_run() -> None:
    keys = ["accuracy", "per_class_recall", "client_accuracy", "calibrations", "deployed", "class_names", "num_clients"]
    assert list(empty_results(("cat", "dog"), 3)) == keys


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ([], "its content is a list, not an object"),
        (None, "its content is None, not an object"),
        (changed("deployed", value=...), 'its content has no "deployed"'),
        (changed("deployed", value=7), "deployed is 7, not text"),
        (changed("deployed", value="ridge"), "accuracy has no head 'ridge'"),
        (changed("accuracy", "uncalibrated", value=...), "accuracy has no head 'uncalibrated'"),
        (changed("accuracy", value=[]), "accuracy is a list, not an object"),
        (changed("accuracy", "ccvr", value="67"), "accuracy['ccvr'] is '67', not a finite number"),
        (changed("accuracy", "ccvr", value=None), "accuracy['ccvr'] is None, not a finite number"),
        (changed("accuracy", "ccvr", value=True), "accuracy['ccvr'] is True, not a finite number"),
        (changed("accuracy", "ccvr", value=float("nan")), "accuracy['ccvr'] is nan, not a finite number"),
        (changed("accuracy", "ccvr", value=10**400), f"accuracy['ccvr'] is 1{'0' * 59}, not a finite number"),
        (changed("accuracy", "new\nline", value=1), r"per_class_recall has no head 'new\nline'"),
        (changed("per_class_recall", "ccvr", value=[1.0]), "per_class_recall['ccvr'] has 1 values for 3 classes"),
        (changed("per_class_recall", "ccvr", value=7), "per_class_recall['ccvr'] is 7, not a list"),
        (
            changed("per_class_recall", "ccvr", value=[1.0, [], 2.0]),
            "per_class_recall['ccvr'][1] is a list, not a finite number",
        ),
        (changed("client_accuracy", "ccvr", value=...), "client_accuracy has no head 'ccvr'"),
        (changed("client_accuracy", "ccvr", "p10", value=...), "client_accuracy['ccvr'] has no \"p10\""),
        (changed("calibrations", "ccvr", "method", value=...), "calibrations['ccvr'] has no \"method\""),
        (changed("class_names", value=["cat", 1, "dog"]), "class_names[1] is 1, not text"),
        (changed("missing", value={"train": ["3"]}), "missing['train'] is a list, not an object"),
        (changed("personal_accuracy", value={"mean": 1.0}), 'personal_accuracy has no "p10"'),
        (changed("personal", value={"prior": OWN}), "personal['prior'] has no \"method\""),
        (changed("personal", value={"prior": {**OWN, "method": 3}}), "personal['prior']['method'] is 3, not text"),
        (
            changed("personal", value={"prior": {**OWN, "method": "prior", "head": "gone"}}),
            "personal['prior'] is of the head 'gone', which has no accuracy",
        ),
    ],
)
def test_damage_is_one_line_with_the_fact_and_the_remedy(content: Any, fact: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.results.write_text(json.dumps(content))
    with pytest.raises(RunError) as error:
        folder.read_results()
    message = str(error.value)
    assert message.startswith(f"{folder.results} is damaged: {fact}. Delete it and make it again with `ccvr resume ")
    assert "\n" not in message


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 200 + "1" + "}" * 200, "1" * 5000, "{", "\x00"])
def test_no_text_raises_anything_else(text: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.results.write_text(text)
    with pytest.raises(RunError, match=r"results\.json cannot be read \(.*\)\. Delete it"):
        folder.read_results()


def test_heads_of_another_file_get_their_new_labels() -> None:
    own, other = (check_results(results(after=after), Path(), "") for after in (67.0, 68.0))
    other["validation_accuracy"] = {"ccvr": 5.0}
    union = with_heads(own, other, {"ccvr": "ccvr-2"})
    assert union["accuracy"] == {"uncalibrated": 61.5, "ccvr": 67.0, "oracle": 70.0, "ccvr-2": 68.0}
    assert union["validation_accuracy"] == {"ccvr-2": 5.0}
    assert check_results(union, Path(), "") == union
    assert "ccvr-2" not in own["accuracy"], "the arguments stay as they were"


def test_more_heads_than_tables_show_are_refused() -> None:
    said = results()
    said["accuracy"] |= {f"head {number}": 1.0 for number in range(1000)}
    with pytest.raises(RunError, match="accuracy has 1,003 labels, more than 1,000"):
        check_results(said, Path("x"), "")
