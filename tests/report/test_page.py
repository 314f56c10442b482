"""The page about runs: its numbers are those of the files, and nothing in the files can break it."""

import html
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file

from ccvr.core.arrays import arrays_to_bytes
from ccvr.core.errors import RunError
from ccvr.report.drawn import draw, save_figures
from ccvr.report.figures.table import FIGURES
from ccvr.report.groups import Spread, group
from ccvr.report.page import page
from ccvr.report.runs import RunFiles, read_runs
from tests.report.conftest import CALIBRATION, MakeRun, analyses, record, results, spec, write_run
from tests.report.hostile import HOSTILE, write_hostile_runs
from tests.report.realistic import POINTS, write_realistic_run


class Seen(HTMLParser):
    """Tags with their attributes, ids, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.tags if "id" in attrs]


def page_of(*paths: Path) -> str:
    runs = read_runs(paths)
    return page(runs, draw(runs))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page about a run with all analyses."""
    return page_of(write_run(tmp_path_factory.mktemp("one") / "run"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("two")
    return page_of(write_run(folder / "a"), write_run(folder / "b", analyzed=False))


def drawn_ids(text: str) -> list[str]:
    return re.findall(r'<h3 id="figure-([\w-]+)"', text)


class TestNumbers:
    def test_the_headline_is_what_the_results_say(self, one: str) -> None:
        said = results()["accuracy"]
        text = one
        values = {name: float(value) for name, value in re.findall(r'data-name="(\w+)" data-value="([^"]+)"', text)}
        expected = {"before": said["uncalibrated"], "after": said["ccvr"]}
        assert values == expected | {"gain": said["ccvr"] - said["uncalibrated"]}
        assert "61.50 %</span> → " in text
        assert "+6.13 points" in text
        assert "Worst class: 1.50 % (<bdi>dog</bdi>) → 60.13 % (<bdi>cat</bdi>)" in text

    def test_the_table_has_every_head(self, one: str) -> None:
        cells = re.findall(r'<td class="n" data-value="([^"]+)">([^<]*)<', one)
        shown = [text for _, text in cells]
        assert shown == [
            *("61.50", "–", "1.50", "12.35"),
            *("67.63", "+6.13", "60.13", "40.00"),
            *("70.00", "+8.50", "70.00", "–"),
        ]

    def test_bars_tell_the_recalls(self, one: str) -> None:
        for words in ("cat, uncalibrated: 50.00 %", "dog, ccvr: 70.00 %", "oracle: 70.00 %", "run: 60 % (round 3)"):
            assert f"<title>{words}</title>" in one

    def test_seeds_are_taken_together(self, make_run: MakeRun) -> None:
        afters = [66.0, 68.0, 69.0]
        paths = [make_run(f"s{i}", made=spec(i), said=results(after=a), analyzed=False) for i, a in enumerate(afters)]
        paths.append(make_run("other", made=spec(0, training__lr=0.5), analyzed=False))
        runs = read_runs(paths)
        groups = group(runs)
        assert [len(each.runs) for each in groups] == [3, 1]
        assert [each.name for each in groups] == [
            "digits, dirichlet 0.1, fedavg, training.lr 0.01",
            "digits, dirichlet 0.1, fedavg, training.lr 0.5",
        ]
        assert groups[0].accuracy("ccvr") == Spread(mean(afters), stdev(afters))
        assert f"{mean(afters):.2f} ± {stdev(afters):.2f}" in page(runs, [])

    def test_it_can_be_repeated(self, one: str) -> None:
        assert "<pre>ccvr run --out &#x27;a folder&#x27;</pre>" in one


class TestFigures:
    def test_a_run_with_all_analyses_has_all_but_the_sweeps(self, one: str) -> None:
        sweeps = {"virtual", "clients", "amounts"}
        assert drawn_ids(one) == [row.id for row in FIGURES if row.id not in sweeps]

    def test_what_is_missing_is_left_out(self, make_run: MakeRun) -> None:
        path = make_run(analyzed=False)
        plain = ["labels", "client-norms", "accuracy", "loss", "heads", "recall", "mixes", "time"]
        assert drawn_ids(page_of(path)) == plain
        (path / "rounds.jsonl").unlink()
        (path / "partition.safetensors").unlink()
        (path / "provenance.json").unlink()
        assert drawn_ids(page_of(path)) == ["heads", "recall", "mixes"]

    def test_sweeps(self, make_run: MakeRun) -> None:
        said = results()
        for n in (50, 500):
            said["accuracy"][f"ccvr-m{n}"] = 60.0 + n / 100
            said["calibrations"][f"ccvr-m{n}"] = {**CALIBRATION, "num_virtual": n}
        said["accuracy"]["few"] = 65.0
        said["calibrations"]["few"] = {**CALIBRATION, "method": "oracle-partial"}
        for label in said["accuracy"]:
            said["per_class_recall"].setdefault(label, [1.0, 2.0, 3.0])
            said["client_accuracy"].setdefault(label, {"mean": 1.0, "worst": 1.0, "p10": 1.0})
        one = make_run("one", made=spec(data__name="cifar10"), said=said, analyzed=False)
        two = make_run("two", made=spec(data__name="cifar10", partition__num_clients=50), analyzed=False)
        text = page_of(one, two)
        assert {"virtual", "clients", "amounts"} <= set(drawn_ids(text))
        assert "60.50 % with 50, 67.63 % with 100, 65.00 % with 500" in text
        assert "<title>paper, CCVR: 61.07</title>" in text
        assert "<title>paper, before: 57.94</title>" in text
        assert "none: 61.50 %, 100: 65.00 %, all: 70.00 %" in text

    def test_every_drawing_has_words_and_a_size(self, two: str) -> None:
        drawings = Seen(two).all("svg")
        assert len(drawings) > 25
        for attrs in drawings:
            assert attrs["role"] == "img"
            assert len(attrs["aria-label"] or "") > 20
            assert re.fullmatch(r"[\d.]+pt", attrs["width"] or "")
            assert re.fullmatch(r"[\d.]+pt", attrs["height"] or "")

    def test_ids_are_there_once_and_links_arrive(self, two: str) -> None:
        seen = Seen(two)
        assert len(seen.ids) == len(set(seen.ids))
        links = [str(attrs.get("href") or attrs.get("xlink:href")) for _, attrs in seen.tags]
        assert {link[1:] for link in links if link.startswith("#")} <= set(seen.ids)

    def test_figures_are_files_too(self, make_run: MakeRun, tmp_path: Path) -> None:
        runs = read_runs([make_run(analyzed=False)])
        found = draw(runs)[:4]
        paths = save_figures(found, tmp_path / "figures", ["svg", "png", "pdf"])
        starts = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
        assert len(paths) == 3 * sum(len(each.panels) for each in found)
        assert all(path.read_bytes().startswith(starts[path.suffix]) for path in paths)
        before = {path: path.read_bytes() for path in paths}
        save_figures(draw(runs)[:4], tmp_path / "figures", ["svg", "png", "pdf"])
        assert {path: path.read_bytes() for path in paths} == before

    def test_files_of_an_earlier_report_are_removed_and_no_others(self, make_run: MakeRun, tmp_path: Path) -> None:
        found = draw(read_runs([make_run(analyzed=False)]))[:2]
        folder = tmp_path / "figures"
        save_figures(found, folder, ["svg"])
        (folder / "mine.svg").write_text("the user's")
        (tmp_path / "precious.svg").write_text("the user's")
        with (folder / ".written").open("a") as file:
            file.write("../precious.svg\n")  # nothing outside the folder, whatever the list says
        (second,) = save_figures(found[:1], folder, ["svg"])
        assert {path.name for path in folder.iterdir()} == {second.name, "mine.svg", ".written"}
        assert (tmp_path / "precious.svg").exists()
        save_figures(found, folder, [])
        assert [path.name for path in folder.iterdir()] == ["mine.svg"]
        (folder / "mine.svg").unlink()
        save_figures(found[:1], folder, ["svg"])
        save_figures(found, folder, [])
        assert not folder.exists()

    def test_many_classes(self, make_run: MakeRun) -> None:
        path = make_run(analyzed=False)
        said = results(class_names=[f"class {i}" for i in range(100)])
        said["per_class_recall"] = {label: [float(i) for i in range(100)] for label in said["accuracy"]}
        (path / "results.json").write_text(json.dumps(said))
        (path / "partition.safetensors").unlink()
        text = page_of(path)
        assert "<title>class 40: 40.00 % → 40.00 %</title>" in text


class TestOddRuns:
    def test_without_calibration(self, make_run: MakeRun) -> None:
        path = make_run(said=uncalibrated(results()))
        arrays, _ = analyses()["separability"]
        (path / "analysis" / "separability.safetensors").write_bytes(
            arrays_to_bytes(arrays, {"mean": 1.0, "gains": {}})
        )
        text = page_of(path)
        assert "The model is saved without calibration." in text
        assert "separability" not in drawn_ids(text)
        assert {"heads", "recall", "confusion", "norms", "tsne"} <= set(drawn_ids(text))

    def test_of_other_data_and_models(self, make_run: MakeRun) -> None:
        one = make_run("one")
        said = results(class_names=["a", "b"])
        said["per_class_recall"] = {label: [50.0, None] for label in said["accuracy"]}
        two = make_run("two", made=spec(data__name="other"), said=said, analyzed=False)
        save_file({"label_counts": np.ones((3, 2), dtype=np.int64)}, two / "partition.safetensors")
        (two / "rounds.jsonl").unlink()
        arrays, about = analyses()["cka"]
        deeper = {**about, "layers": ["a", "b", "c", "head"], "mean": [0.9, 0.8, 0.7, 0.6]}
        (two / "analysis").mkdir()
        matrices = np.concatenate([arrays["cka"], arrays["cka"][:1]])
        (two / "analysis" / "cka.safetensors").write_bytes(arrays_to_bytes({"cka": matrices}, deeper))
        text = page_of(one, two)
        assert "<title>two (fedavg), head: 0.600</title>" in text
        assert ">layer</text>" in text, "layers of other names are numbered"

    def test_what_is_not_a_number_is_not_drawn(self, make_run: MakeRun) -> None:
        path = make_run()
        arrays, about = analyses()["cka"]
        dead = arrays["cka"].copy()
        dead[1] = np.nan
        means = {**about, "mean": [0.9, float("nan"), 0.3]}
        (path / "analysis" / "cka.safetensors").write_bytes(arrays_to_bytes({"cka": dead}, means))
        lines = [{**record(1), "loss": None}, {**record(2), "accuracy": float("nan")}, record(3)]
        (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text = page_of(path)
        assert "<title>run (fedavg), a: 0.900</title>" in text
        assert "<title>run (fedavg), b: nan</title>" not in text
        assert "<title>run: nan % (round 2)</title>" not in text
        assert "lowest in head" in text

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "67", None, [1]])
    def test_with_results_that_are_no_numbers_are_one_error(self, value: object, make_run: MakeRun) -> None:
        said = results()
        said["accuracy"]["ccvr"] = value
        with pytest.raises(RunError, match="does not say all"):
            RunFiles.read(make_run(said=said))

    @pytest.mark.parametrize("row", [[1.0, 2.0, "x"], [1.0, 2.0, float("nan")], 7, None])
    def test_with_recalls_that_are_no_numbers_are_one_error(self, row: object, make_run: MakeRun) -> None:
        said = results()
        said["per_class_recall"]["ccvr"] = row
        with pytest.raises(RunError, match="does not say all"):
            RunFiles.read(make_run(said=said))


def uncalibrated(said: dict[str, Any]) -> dict[str, Any]:
    """The results of a run that calibrated nothing."""
    kept = {
        key: {"uncalibrated": said[key]["uncalibrated"]} for key in ("accuracy", "per_class_recall", "client_accuracy")
    }
    return {**said, **kept, "calibrations": {}, "deployed": "uncalibrated"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(*write_hostile_runs(tmp_path_factory.mktemp("hostile")))


class TestHostileNames:
    def test_cannot_script_the_page(self, hostile: str) -> None:
        seen = Seen(hostile)
        assert len(seen.all("script")) == 1
        assert len(seen.all("style")) == 1
        assert not seen.all("img")
        assert not [key for _, attrs in seen.tags for key in attrs if key.startswith("on")]

    def test_cannot_break_it(self, hostile: str) -> None:
        assert hostile.encode("utf-8")
        assert "\x00" not in hostile
        assert "\u202e" not in hostile
        assert hostile.count("<svg ") == hostile.count("</svg>")
        assert html.escape(HOSTILE[0]) in hostile
        for drawing in re.findall(r"<svg .*?</svg>", hostile, re.DOTALL):
            ElementTree.fromstring(drawing)

    def test_cannot_make_it_ask_the_network(self, hostile: str) -> None:
        seen = Seen(hostile)
        policy = next(a["content"] for a in seen.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
        assert str(policy).startswith("default-src 'none'; img-src data:;")
        for _, attrs in seen.tags:
            for key in ("src", "href", "xlink:href"):
                assert str(attrs.get(key) or "#").startswith(("#", "data:"))


class TestSize:
    def test_the_same_files_give_the_same_bytes(self, one: str, make_run: MakeRun) -> None:
        assert page_of(make_run()) == one

    @pytest.mark.parametrize("number", [3, pytest.param(10, marks=pytest.mark.slow)])
    def test_runs_with_everything_are_light(self, number: int, tmp_path: Path) -> None:
        """Ten have 5 MB."""
        paths = [write_realistic_run(tmp_path / f"run-{each}", each) for each in range(number)]
        runs = read_runs(paths)
        found = draw(runs)
        assert {row.id for row in FIGURES} - {each.row.id for each in found} == {"clients", "amounts"}
        text = page(runs, found)
        assert 300_000 * number < len(text.encode()) < 500_000 * number
        assert f"t-SNE of {POINTS:,} test features, of which 2,000 are drawn" in text


class TestDamage:
    @pytest.mark.parametrize("name", ["spec.toml", "results.json", "provenance.json", "rounds.jsonl"])
    def test_is_one_error(self, name: str, make_run: MakeRun) -> None:
        path = make_run()
        (path / name).write_bytes(b"\xff[1\n")
        with pytest.raises(RunError, match=name):
            RunFiles.read(path)

    @pytest.mark.parametrize("name", ["partition.safetensors", "analysis/cka.safetensors"])
    def test_of_arrays_is_one_error(self, name: str, make_run: MakeRun) -> None:
        path = make_run()
        (path / name).write_bytes(b"x" * 20)
        with pytest.raises(RunError, match=name):
            RunFiles.read(path)

    def test_results_without_scores_are_one_error(self, make_run: MakeRun) -> None:
        with pytest.raises(RunError, match="does not say all"):
            RunFiles.read(make_run(said=results(per_class_recall={})))

    def test_arrays_that_do_not_fit_are_one_error(self, make_run: MakeRun) -> None:
        path = make_run()
        shutil.copy(path / "analysis" / "norms.safetensors", path / "analysis" / "confusion.safetensors")
        with pytest.raises(RunError, match="Confusion"):
            page_of(path)

    def test_an_unfinished_run_is_one_error(self, make_run: MakeRun) -> None:
        path = make_run()
        (path / "results.json").unlink()
        with pytest.raises(RunError, match="ccvr resume"):
            RunFiles.read(path)
