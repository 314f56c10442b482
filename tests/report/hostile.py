"""Runs in which everything that has a name has a hostile one."""

import json
from pathlib import Path

from ccvr.core.arrays import arrays_to_bytes
from tests.report.conftest import analyses, results, spec, write_run

HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></svg></script><b>",
    "$x$ & \\alpha &amp; --> ]]>",
    "שלום \u202e gnol",
    "猫" * 300,
    "a\x00b\nc\ud800\uffff",
]


def write_hostile_runs(folder: Path) -> list[Path]:
    said = results(class_names=HOSTILE[:3], deployed=HOSTILE[0])
    for key in ("accuracy", "per_class_recall", "client_accuracy", "calibrations"):
        said[key][HOSTILE[0]] = said[key].pop("ccvr")
        said[key] |= dict.fromkeys(HOSTILE, said[key]["oracle"])
    own = {"method": HOSTILE[1], "options": {HOSTILE[2]: HOSTILE[3]}, "head": HOSTILE[0]}
    own |= {"accuracy": {"mean": 9.0, "worst": 9.0, "p10": 9.0}, "clients": [9.0, None, 9.0, 9.0]}
    said["personal"] = dict.fromkeys(HOSTILE, own)
    path = write_run(folder / HOSTILE[1].replace("/", ""), made=spec(data__name=HOSTILE[2]), said=said)
    (path / "provenance.json").write_text(json.dumps({"command": HOSTILE, "versions": dict.fromkeys(HOSTILE, "1")}))
    arrays = analyses()
    heads, layers = ["uncalibrated", *HOSTILE[:2]], [HOSTILE[0], HOSTILE[5], HOSTILE[1]]
    about = {
        **{key: {"heads": heads} for key in ("confusion", "norms")},
        "cka": arrays["cka"][1] | {"layers": layers},
        "separability": {"mean": 1.25, "gains": dict.fromkeys(HOSTILE[:4], 2.0)},
        "tsne": {"after": HOSTILE[0]},
    }
    for key, words in about.items():
        (path / "analysis" / f"{key}.safetensors").write_bytes(arrays_to_bytes(arrays[key][0], words))
    other = spec(training__algorithm=HOSTILE[4])
    return [path, write_run(folder / "other", analyzed=False, made=other, said=results(class_names=HOSTILE[3:6]))]
