"""Methods as text, ``method[,option=value…][,label=…]``, and which of them may become the model."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.spec import CalibrationSpec
from ccvr.calibration.table import CALIBRATORS, find_calibrator
from ccvr.core.errors import SpecError, UnknownName
from ccvr.core.methods import build_method, option_names, require_different, split_label, text_of
from ccvr.core.results import UNCALIBRATED

SELECT = "select"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """One calibration: a method by its name and with its options, and the label of its head and figures."""

    name: str
    label: str
    method: Calibrator


def parse_calibration(text: str, defaults: Mapping[str, Any] | None = None) -> Calibration:
    """One method with its options; ``defaults`` are values for options that it has and the text does not give."""
    name = text.partition(",")[0]
    cls = find_calibrator(name)
    label, options = split_label(text, cls, "calibration", (UNCALIBRATED, SELECT))
    own = {key: value for key, value in (defaults or {}).items() if key in option_names(cls) and key not in options}
    return Calibration(name, label, build_method(cls, options, name, own))


def parse_calibrations(spec: CalibrationSpec) -> tuple[Calibration, ...]:
    """All calibrations of a spec, checked: known methods, one label each, a deployable one to deploy."""
    calibrations = tuple(map(parse_calibration, spec.methods))
    labels = [calibration.label for calibration in calibrations]
    require_different(labels, "calibrations")
    require_deployable(spec.deploy or next(iter(labels), UNCALIBRATED), methods_of(calibrations))
    return calibrations


def methods_of(calibrations: Sequence[Calibration]) -> dict[str, str]:
    """The method's name of each label."""
    return {calibration.label: calibration.name for calibration in calibrations}


def require_deployable(label: str, methods: Mapping[str, str]) -> None:
    """Refuse a label that nobody has, and one whose ``methods`` entry needs raw features."""
    allowed = [name for name, method in methods.items() if not find_calibrator(method).raw] + [UNCALIBRATED]
    if label in allowed or label == SELECT:
        return
    fact = "needs every client's raw features and cannot be deployed" if label in methods else "is not a label"
    raise SpecError(f'calibration.deploy is "{label}", which {fact}. Choose one of: {", ".join(allowed)}.')


# --- how calibrations were written before methods had options of their own --------------------------------------------


def upgraded(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """A calibration section with methods as text, also where some are tables, or the section has options for all.

    Keys that are no option of any method of ours stay; the reader of the section refuses them.
    """
    shared = shared_options(calibration)
    section = {key: value for key, value in calibration.items() if key not in shared}
    methods = calibration.get("methods", CalibrationSpec().methods)
    if isinstance(methods, list | tuple) and (shared or any(isinstance(each, Mapping) for each in methods)):
        section["methods"] = [with_shared(_as_text(each), shared) for each in methods]
    return section


def shared_options(calibration: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a calibration section of an old spec has for all methods."""
    options = {name for cls in CALIBRATORS.values() for name in option_names(cls)}
    return {key: value for key, value in calibration.items() if key in options}


def _as_text(method: Any) -> str:
    if not isinstance(method, Mapping):
        return str(method)
    return text_of(str(method.get("name", "ccvr")), {key: value for key, value in method.items() if key != "name"})


def with_shared(text: str, shared: Mapping[str, Any]) -> str:
    """A method with the section's options that it has, as far as they change something."""
    if not shared:
        return text
    name, *pairs = text.split(",")
    try:
        cls = find_calibrator(name)
    except (UnknownName, SpecError):
        return text  # what is wrong with it is told where it is used
    given = {pair.partition("=")[0] for pair in pairs}
    default = {field.name: field.default for field in dataclasses.fields(cls)}
    added = {key: value for key, value in shared.items() if key in default and key not in given}
    if added.get("kind") not in (None, *cls.kinds):
        del added["kind"]  # it was meant for other methods
    changes = {key: value for key, value in added.items() if value != default[key]}
    return ",".join([text, *text_of("", changes).split(",")[1:]])


def method_of(row: Mapping[str, Any]) -> Calibrator:
    """The method of a calibration's row of results.json."""
    cls = find_calibrator(row["method"])
    options = {name: row[name] for name in option_names(cls) if row.get(name) is not None}
    return cls(**options)


def current_options(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a calibration's row of results.json; what old rows leave open is the method's default."""
    fields = dataclasses.fields(CALIBRATORS[name]) if ":" not in name and name in CALIBRATORS else ()
    return {field.name: field.default if row.get(field.name) is None else row[field.name] for field in fields}
