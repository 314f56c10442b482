"""The page about runs: its numbers are those of the files, and nothing in the files can break it."""

import html
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file

from ccvr.core.arrays import arrays_to_bytes
from ccvr.core.errors import RunError
from ccvr.report.figure_set import ROOM, draw, inlined, save_figures
from ccvr.report.figures.sweeps import amounts, clients, virtual_features
from ccvr.report.figures.table import FIGURES
from ccvr.report.groups import Spread, group
from ccvr.report.page import page
from ccvr.report.runs import RunFiles, read_runs
from ccvr.report.svg import inline
from tests.report.conftest import CALIBRATION, MakeRun, analyses, record, results, spec, write_run
from tests.report.hostile import HOSTILE, write_hostile_runs
from tests.report.realistic import POINTS, Shape, write_realistic_run


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
        for words in (
            "cat, uncalibrated: 50.00 %",
            "dog, ccvr: 70.00 %",
            "oracle: 70.00 %",
            "run (fedavg): 60 % (round 3)",
        ):
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
            "other (fedavg)",
        ]
        assert [each.about for each in groups] == [
            "3 seeds: s0 (fedavg), s1 (fedavg), s2 (fedavg)",
            "digits, dirichlet 0.1, fedavg, training.lr 0.5",
        ]
        assert groups[0].accuracy("ccvr") == Spread(mean(afters), stdev(afters))
        assert f"{mean(afters):.2f} ± {stdev(afters):.2f}" in page(runs, [])

    def test_the_clients_own_models_where_the_run_has_them(self, one: str, make_run: MakeRun) -> None:
        line = "Each client's own model (<bdi>{}</bdi>) under its label mix: mean {} %, worst {} %; the global"
        scores = {"mean": 81.25, "worst": 40.0, "p10": 50.0}
        old = page_of(make_run(said=results(personal_accuracy=scores), analyzed=False))
        assert line.format("trained", 81.25, "40.00") in old
        better = {"method": "prior", "options": {}, "head": "ccvr", "clients": [90.0, None]}
        worse = {**better, "accuracy": scores}
        rows = {"<b>": worse, "prior": {**better, "accuracy": {"mean": 90.0, "worst": 90.0, "p10": 90.0}}}
        new = page_of(make_run("new", said=results(personal=rows), analyzed=False))
        assert line.format("prior", "90.00", "90.00") in new, "the best is said"
        (table,) = re.findall('<table id="own-models">(.*?)</table>', new, re.DOTALL)
        assert re.findall(r"<td><bdi>(.*?)</bdi></td>", table) == ["prior", "&lt;b&gt;"]
        shared = results()["client_accuracy"]["ccvr"]
        said = [90.0, shared["mean"], 90.0, shared["worst"]]
        assert [float(value) for value in re.findall('data-value="(.*?)"', table)][:4] == said
        assert "own-models" not in one
        assert "Each client's own model" not in one

    def test_raw_data_that_moved_is_named(self, one: str, make_run: MakeRun) -> None:
        shared = {"samples": 1234, "bytes": 56789}
        line = "Raw data moved: every client trained on 1,234 shared samples beside its own (56,789 bytes"
        assert line in page_of(make_run(said=results(shared=shared), analyzed=False))
        assert "Raw data moved" not in one

    def test_it_can_be_repeated(self, one: str) -> None:
        (said,) = re.findall("<pre>(.*?)</pre>", one, re.DOTALL)
        assert html.unescape(said).splitlines() == [
            "ccvr run --out 'a folder'",
            "ccvr analyze RUN --only cka confusion inversion norms separability tsne --against iid --points 50",
        ]

    def test_calibrations_that_were_added_can_be_repeated(self, make_run: MakeRun) -> None:
        path = make_run(analyzed=False)
        later = [{"command": ["ccvr", "calibrate", "a folder", "--method", f"lda,label={i}"]} for i in (1, 2)]
        (path / "provenance.json").write_text(json.dumps({"command": ["ccvr", "run"], "calibrated": later}))
        (said,) = re.findall("<pre>(.*?)</pre>", page_of(path), re.DOTALL)
        added = [f"ccvr calibrate 'a folder' --method lda,label={i}" for i in (1, 2)]
        assert html.unescape(said).splitlines() == ["ccvr run", *added]

    def test_a_run_has_one_name_everywhere(self, make_run: MakeRun) -> None:
        other = make_run("b", made=spec(training__algorithm="moon"), analyzed=False)
        text = html.unescape(page_of(make_run("a", analyzed=False), other))
        card, *_ = re.findall('<section class="card">.*?</section>', text)
        assert "<bdi>a (fedavg)</bdi>" in card
        assert "<bdi>digits, dirichlet 0.1, fedavg" in card
        for place in (
            "<td class=run><bdi>{}",
            '<th scope="col"><bdi>{}',
            "<p><bdi>{} · ",
            "<h3><bdi>{}",
            "<title>{}: 60 %",
        ):
            assert place.format("a (fedavg)") in text


class TestFigures:
    def test_a_run_with_all_analyses_has_all_but_the_sweeps(self, one: str) -> None:
        others = {"virtual", "clients", "amounts", "own"}
        assert drawn_ids(one) == [row.id for row in FIGURES if row.id not in others]

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
        one = make_run("one", made=papers(), said=said, analyzed=False)
        two = make_run("two", made=papers(partition__num_clients=50), analyzed=False)
        text = page_of(one, two)
        assert {"virtual", "clients", "amounts"} <= set(drawn_ids(text))
        assert "60.50 % with 50, 67.63 % with 100, 65.00 % with 500" in text
        assert "<title>paper, 100 × 10: 61.07</title>" in text
        assert "<title>paper, 100 × 10, before: 57.94</title>" in text
        assert "none: 61.50 %, 100: 65.00 %, all: 70.00 %" in text
        other = {"model__name": "resnet18"}, {"partition__num_clients": 50}, {"training__client_fraction": 0.5}
        for number, change in enumerate([{}, *other]):
            run = RunFiles.read(make_run(f"other-{number}", made=papers(**change), said=said, analyzed=False))
            for drawing in (virtual_features, amounts):
                (panel,) = drawing(run)
                names = panel.figure.axes[0].get_legend_handles_labels()[1]
                assert ("paper, 100 × 10" in names) == (not change), change

    @pytest.mark.parametrize(("part", "are_one"), [(1.0, True), (0.2, True), (0.5, False)])
    def test_more_clients_of_whom_the_same_part_or_as_many_train(
        self, part: float, are_one: bool, make_run: MakeRun
    ) -> None:
        few = make_run("few", made=papers(), analyzed=False)
        many = make_run("many", made=papers(partition__num_clients=50, training__client_fraction=part), analyzed=False)
        assert len(clients([RunFiles.read(few), RunFiles.read(many)])) == are_one

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

    def test_files_of_an_earlier_report_are_replaced_and_no_others(self, make_run: MakeRun, tmp_path: Path) -> None:
        found = draw(read_runs([make_run(analyzed=False)]))
        folder = tmp_path / "figures"
        save_figures(found[:1], folder, ["svg", "png"])
        save_figures(found[2:3], folder, ["png"])
        (folder / "mine.svg").write_text("the user's")
        (tmp_path / "precious.svg").write_text("the user's")
        with (folder / ".written").open("a") as file:
            file.write("../precious.svg\n")  # nothing outside the folder, whatever the list says
        names = ["labels.svg", "accuracy.png", "mine.svg", ".written"]
        assert {path.name for path in folder.iterdir()} == set(names), "what was asked for again, and that alone"
        assert save_figures(found, folder, []) == []
        assert {path.name for path in folder.iterdir()} == set(names), "a report without figures touches none"
        save_figures(found[2:3], folder, ["svg"])
        assert {path.name for path in folder.iterdir()} == {"accuracy.svg", *names[1:]}
        assert (tmp_path / "precious.svg").exists()

    def test_files_are_named_by_what_they_show(self, make_run: MakeRun, tmp_path: Path) -> None:
        runs = read_runs([make_run("one"), make_run("two.b", made=spec(training__algorithm="moon"))])
        found = {each.row.id: [name for name, _ in each.named()] for each in draw(runs)}
        assert found["labels"] == ["labels-one-fedavg", "labels-two-b-moon"]
        assert found["cka"] == ["cka"]
        assert found["cka-pairs"][:2] == ["cka-pairs-one-fedavg-a", "cka-pairs-one-fedavg-b"]
        assert found["confusion"][-1] == "confusion-two-b-moon-ccvr"
        assert found["loss"] == ["loss-on-the-test-set", "loss-on-the-clients-before-averaging"]

    def test_names_of_files_are_there_once_whatever_the_names_of_runs(self, tmp_path: Path) -> None:
        drawn = draw(read_runs(write_hostile_runs(tmp_path)))
        same = replace(
            drawn[0], panels=tuple(replace(drawn[0].panels[0], name=n) for n in ("A b", "a/B", "猫" * 99, ""))
        )
        assert [name for name, _ in same.named()] == ["labels-a-b", "labels-a-b-2", f"labels-{'猫' * 60}", "labels"]
        names = [name for each in [*drawn, same] for name, _ in each.named()]
        assert all(re.fullmatch(r"[\w-]+", name) and len(name.encode()) < 240 for name in names)
        for each in drawn:
            assert len({name.lower() for name, _ in each.named()}) == len(each.panels)

    def test_many_classes(self, make_run: MakeRun) -> None:
        path = make_run(analyzed=False)
        said = results(class_names=[f"class {i}" for i in range(100)])
        said["per_class_recall"] = {label: [float(i) for i in range(100)] for label in said["accuracy"]}
        (path / "results.json").write_text(json.dumps(said))
        (path / "partition.safetensors").unlink()
        (path / "rounds.jsonl").unlink()
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
        two = draw(read_runs([path, shutil.copytree(path, path.with_name("other"))]))
        assert "separability" not in {each.row.id for each in two}
        assert {"heads", "recall", "confusion", "norms", "tsne"} <= set(drawn_ids(text))

    def test_of_other_data_and_models(self, make_run: MakeRun) -> None:
        one = make_run("one")
        said = results(class_names=["a", "b"], num_clients=3)
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
        lines = [{**record(1), "loss": None}, {**record(2), "accuracy": None}, record(3)]
        (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text = page_of(path)
        assert "<title>run (fedavg), a: 0.900</title>" in text
        assert "<title>run (fedavg), b: nan</title>" not in text
        assert "<title>run (fedavg): nan % (round 2)</title>" not in text
        assert "lowest in head" in text

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "67", None, [1]])
    def test_with_results_that_are_no_numbers_are_one_error(self, value: object, make_run: MakeRun) -> None:
        said = results()
        said["accuracy"]["ccvr"] = value
        with pytest.raises(RunError, match=r"is damaged: accuracy\['ccvr'\] is "):
            RunFiles.read(make_run(said=said))

    @pytest.mark.parametrize("row", [[1.0, 2.0, "x"], [1.0, 2.0, float("nan")], 7, None])
    def test_with_recalls_that_are_no_numbers_are_one_error(self, row: object, make_run: MakeRun) -> None:
        said = results()
        said["per_class_recall"]["ccvr"] = row
        with pytest.raises(RunError, match=r"is damaged: per_class_recall\['ccvr'\]"):
            RunFiles.read(make_run(said=said))


def papers(**changes: Any) -> dict[str, Any]:
    """A spec that has the paper's data, owners and network."""
    made = {**spec(data__name="cifar10", partition__num_clients=10), "model": {"name": "simple-cnn"}}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        made[section] = {**made[section], field: value}
    return made


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

    def test_values_on_hover_go_where_there_is_no_room_the_most_first(self, make_run: MakeRun) -> None:
        found = draw(read_runs([make_run()]))[:4]
        inlined(found)  # matplotlib's layout settles when it is drawn for the first time
        full = {key: "".join(panels) for key, panels in inlined(found).items()}
        values = {key: text.count("<title>") for key, text in full.items()}
        most = max(values, key=lambda key: values[key])
        room = sum(len(text.encode()) for text in full.values()) - 1
        less = {key: "".join(panels) for key, panels in inlined(found, room).items()}
        assert values[most] > 30
        assert less.pop(most).count("<title>") == 0
        assert less == {key: text for key, text in full.items() if key != most}
        assert "<title>" not in "".join(chain(*inlined(found, 0).values()))
        assert {key: "".join(panels) for key, panels in inlined(found).items()} == full, "figures stay as they were"

    @pytest.mark.parametrize("shape", [Shape(10, 10, 100), Shape(15, 15, 20), Shape(100, 100, 200)], ids=str)
    @pytest.mark.slow
    def test_ten_runs_with_everything_are_light(self, shape: Shape, tmp_path: Path) -> None:
        paths = [write_realistic_run(tmp_path / f"run-{each}", each, shape) for each in range(10)]
        runs = read_runs(paths)
        found = draw(runs)
        few = shape.clients <= 20  # with a bar each
        without = {"clients", "amounts"} | (set() if few else {"own"})
        assert {row.id for row in FIGURES} - {each.row.id for each in found} == without
        text = page(runs, found)
        assert 3_000_000 < len(text.encode()) <= 5_000_000
        assert f"t-SNE of {POINTS:,} test features, of which 2,000 are drawn" in text

    @pytest.mark.parametrize(
        "shape", [Shape(15, 15, 20), pytest.param(Shape(100, 100, 30), marks=pytest.mark.slow)], ids=str
    )
    def test_ten_times_what_each_run_has_leaves_room(self, shape: Shape, tmp_path: Path) -> None:
        """Without values on hover, which give way; figures in which runs stand together are few."""
        together = {"lean", "accuracy", "loss", "cka", "time", "separability"}
        found = draw(read_runs([write_realistic_run(tmp_path / "run", 0, shape)]))
        own = [panel for each in found if each.row.id not in together for panel in each.panels]
        assert len(own) == 23 + (shape.clients <= 20)
        size = sum(len(inline(panel.figure, "x", panel.alt, values=False)) for panel in own)
        assert 200_000 < size < 0.1 * ROOM


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
        with pytest.raises(RunError, match="per_class_recall has no head 'uncalibrated'"):
            RunFiles.read(make_run(said=results(per_class_recall={})))

    def test_arrays_that_do_not_fit_are_one_error(self, make_run: MakeRun) -> None:
        path = make_run()
        shutil.copy(path / "analysis" / "norms.safetensors", path / "analysis" / "confusion.safetensors")
        with pytest.raises(RunError, match=r'confusion\.safetensors is damaged: there is no array "confus'):
            page_of(path)

    def test_an_unfinished_run_is_one_error(self, make_run: MakeRun) -> None:
        path = make_run()
        (path / "results.json").unlink()
        with pytest.raises(RunError, match="ccvr resume"):
            RunFiles.read(path)
