"""What a killed command left in a finished run: heads or a model that results.json does not tell of.

results.json is written last and holds the digests of what it is about. So a head that was written just before a kill
shows, and is made again as results.json says: by the same method, with the same options and the same seed.
"""

from collections.abc import Iterator
from dataclasses import asdict

from ccvr.calibration.calibrator import seed_of
from ccvr.calibration.methods import Calibration, method_of
from ccvr.core.fields import plain
from ccvr.core.results import UNCALIBRATED
from ccvr.core.run import RunFolder
from ccvr.experiment.calibrate import deploy, fit_all, score_trained
from ccvr.experiment.events import Event, Finished, Noted
from ccvr.experiment.finished_run import note_command, open_finished_run, trusted_results


def is_finished(folder: RunFolder) -> bool:
    """Whether a run has results, and what is needed to bring its heads and its model to what these say."""
    return folder.results.is_file() and (folder.model.is_file() or bool(folder.read_results().get("files")))


def mended(folder: RunFolder) -> Iterator[Event]:
    """Make again what is not as results.json says, and end with the results."""
    results = folder.read_results()
    changed = folder.changed_files(results)
    if changed:
        names = ", ".join(map(folder.name_of, changed))
        yield Noted(f"{names}: not as results.json says; a command was killed, and it is made again")
        results = trusted_results(folder)
        run = open_finished_run(folder, mending=True)
        note_command(folder, run.setup.spec.seed, "resumed")
        if folder.head(UNCALIBRATED) in changed:
            yield score_trained(results, run)
        rows = {label: row for label, row in results["calibrations"].items() if folder.head(label) in changed}
        yield from fit_all(
            results, [Calibration(row["method"], label, method_of(row)) for label, row in rows.items()], run
        )
        deploy(results, results["deployed"], run)
    yield Finished(results)


def is_same(calibration: Calibration, row: dict[str, object], seed: int) -> bool:
    """Whether a row of results.json is of a calibration with the same options and the same seed."""
    options = {name: plain(value) for name, value in asdict(calibration.method).items()}
    wanted = {"method": calibration.name, **options, "seed": seed_of(calibration.method, seed)}
    return all(row.get(name, value) == value for name, value in wanted.items()) and "method" in row
