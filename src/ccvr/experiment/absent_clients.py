"""Who did not answer in a run, kept so that a resumed run still knows those of before."""

from ccvr.core.errors import RunError
from ccvr.core.run import RunFolder
from ccvr.experiment.engine import Engine

Missing = dict[str, dict[str, str]]
"""By question, why each client did not answer it; as JSON has it."""


def absent_now(engine: Engine) -> Missing:
    """Of all that this engine was asked, also where nobody is missing."""
    asked = engine.missing().items()
    return {question: {str(client): why for client, why in clients.items()} for question, clients in asked}


def keep_absent(engine: Engine, folder: RunFolder) -> Missing:
    """All who are missing so far; what was asked again counts as it was answered last."""
    before = folder.read_json(folder.missing) if folder.missing.is_file() else {}
    if not isinstance(before, dict) or not all(isinstance(clients, dict) for clients in before.values()):
        raise RunError(f"{folder.missing} is damaged. Delete it to go on without the names of those missing so far.")
    known = {question: clients for question, clients in (before | absent_now(engine)).items() if clients}
    if known != before:
        folder.write_json(folder.missing, known)
    return known
