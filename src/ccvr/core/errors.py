"""Every error that a user can cause, in one tree: ``ccvr.CcvrError``, and the others in ``ccvr.errors``.

CcvrError
├── UsageError          a command line that does not parse, a call where it cannot work
├── UnknownName         a name that no table has
├── UntrustedCode       a file that names code that is not ours, and nobody said that it may be imported
├── SpecError           a field with an impossible value, an unreadable spec
├── DataError           a data set that is missing, damaged or mislabelled
├── PartitionError      a partition that cannot be drawn
├── ModelError          a model that does not fit the images, or whose head cannot be found
├── TrainingError       a training that went wrong: diverged, nothing to average
├── StatisticsError     statistics that do not belong together or hold too little
│   └── SecureAggregationError  a masked sum that cannot be had, a message that does not follow the protocol
├── CalibrationError    a calibration that cannot be done with what there is
├── AnalysisError       an analysis that cannot be done with what there is
├── FederationError     clients that are not there or do not answer, a federation that is not reached
│   └── LinkFailed      a SuperLink that is there, and could not do what it was asked for
└── RunError            a run folder that is missing, damaged or in the way
    └── RunInUse        a run folder that another process writes

A message is one line: the fact, the value, the remedy. The command line prints it and exits with code 2. Values may
come from clients and files that nobody trusts, so a message is printable and short, whatever they hold.
"""

import sysconfig
import traceback
from pathlib import Path

MAX_MESSAGE = 2_000
"""Letters of a message. Ours have a few hundred."""


def printable(text: object, most: int = MAX_MESSAGE) -> str:
    r"""A text of unknown origin as one line for terminals and logs.

    Args:
        text: what is to be shown; other objects are shown as ``str`` does.
        most: letters that are kept. Of a longer text the middle is left out.

    Returns:
        The text with control characters, escape codes and lone surrogates written out, as in ``\x1b``.

    Example:
        >>> printable("head \x1b[31m")
        'head \\x1b[31m'
    """
    short = _shortened(str(text), most)
    return short if short.isprintable() else _shortened("".join(map(_visible, short)), most)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 2) :]}"


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")


class CcvrError(Exception):
    """A user's mistake or a user's broken input; never a bug of ours."""

    def __init__(self, message: object = "") -> None:
        super().__init__(printable(message))


class UsageError(CcvrError):
    pass


class UnknownName(CcvrError, KeyError):
    __str__ = Exception.__str__  # a KeyError, for a Mapping's ``in`` and ``get``, but without its quotes


class UntrustedCode(CcvrError):
    pass


class SpecError(CcvrError):
    pass


class DataError(CcvrError):
    pass


class PartitionError(CcvrError):
    pass


class ModelError(CcvrError):
    pass


class TrainingError(CcvrError):
    pass


class StatisticsError(CcvrError):
    pass


class SecureAggregationError(StatisticsError):
    pass


class CalibrationError(CcvrError):
    pass


class AnalysisError(CcvrError):
    pass


class FederationError(CcvrError):
    pass


class LinkFailed(FederationError):
    pass


class RunError(CcvrError):
    pass


class RunInUse(RunError):
    pass


def users_line(error: BaseException) -> str | None:
    """File and line of the user's own code that raised an error; None if only ours and the libraries' took part."""
    libraries = (str(Path(__file__).parents[1]), *sysconfig.get_paths().values(), "<")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else None
