"""Entry point: finds the subcommand, turns mistakes into one line."""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from ccvr import __version__
from ccvr.core.errors import CcvrError, users_line
from ccvr.core.tables import Table
from ccvr.core.terminal import say

COMMANDS = Table(
    "command",
    {
        "run": "train a federated model, calibrate it, keep everything in a run folder",
        "resume": "go on with a run that was stopped",
        "calibrate": "try more calibrations on a finished run",
        "personalise": "models of the clients' own from a finished run: fine-tuned, or under their label frequencies",
        "evaluate": "score a run's model on the test set",
        "analyze": "look closely at finished runs: confusion, CKA, row norms, t-SNE, inversion",
        "report": "one page about finished runs: figures, tables, how to repeat them",
        "reproduce": "the paper, table by table, beside its published numbers",
        "compare": "algorithms over seeds on the same clients: which differences are more than noise",
        "tune": "choose hyperparameters on a held-out part, then train with all",
        "show": "runs side by side: accuracy before and after, gain, worst class",
        "data": "list, get and check data sets",
        "list": "what a spec can name: algorithms, calibrators, … with their options",
    },
    closed=True,
)

HELP = "\n".join(
    [
        "usage: ccvr COMMAND [OPTIONS]",
        "",
        "Give back the accuracy that non-IID data takes from a federated classifier (CCVR).",
        "",
        *(f"  ccvr {name:11s} {what}" for name, what in COMMANDS.items()),
        "",
        "`ccvr run` alone is the demo on embedded data. `ccvr COMMAND --help` tells more.",
    ]
)


def main() -> None:
    """Exit code 0; 2 for a user's mistake; 130 for Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for other characters
    sys.path.append(os.getcwd())  # package.module:name may lie here; last, so that it shadows nothing
    try:
        dispatch(sys.argv[1:])
        print(end="", flush=True)  # noqa: T201 - what the buffer still holds, now that a closed pipe can be dealt with
    except CcvrError as error:
        if os.environ.get("CCVR_TRACEBACK"):
            raise
        say(f"{type(error).__name__}: {error}", error=True)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        say("", str(stop) or "stopped.", error=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`ccvr … | head`), so there is nothing to report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        where = users_line(error)
        if where is None or os.environ.get("CCVR_TRACEBACK"):
            raise
        say(f"{type(error).__name__} in {where}: {error}. CCVR_TRACEBACK=1 shows the way there.", error=True)
        sys.exit(2)


def dispatch(argv: Sequence[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(*HELP.splitlines())
    elif argv[0] == "--version":
        say(f"ccvr {__version__}")
    else:
        COMMANDS[argv[0]]  # an unknown command is an error that suggests one
        importlib.import_module(f"ccvr.cli.{argv[0]}").command(list(argv[1:]))
