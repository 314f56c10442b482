"""Clients that did not answer in a run, kept in missing.json so that a resumed run still has them."""

from ccvr.experiment.engine import Engine, OpenRun

Absent = dict[str, dict[str, str]]
"""By question, why each client did not answer it; as JSON has it."""


def absent_now(engine: Engine) -> Absent:
    """All questions that this engine asked, also those that every client answered."""
    asked = engine.absent().items()
    return {question: {str(client): why for client, why in clients.items()} for question, clients in asked}


def keep_absent(run: OpenRun) -> Absent:
    """Absent clients of all questions so far; a question that was asked again counts as answered last."""
    folder = run.folder
    remedy = "Delete it to go on without the names of absent clients so far."
    before = folder.read_json(folder.absent, remedy, Absent) if folder.absent.is_file() else {}
    known = {question: clients for question, clients in (before | absent_now(run.engine)).items() if clients}
    if known != before:
        folder.write_json(folder.absent, known)
    return known
