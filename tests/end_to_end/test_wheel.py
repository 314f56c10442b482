"""What is installed is what runs from a checkout."""

from pathlib import Path
from zipfile import ZipFile

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    held = set(ZipFile(wheel).namelist())
    files = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    assert {"ccvr/report/page.css", "ccvr/report/page.js", "ccvr/py.typed"} <= wanted
    assert wanted <= held
