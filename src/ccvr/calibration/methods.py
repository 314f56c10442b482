"""Methods as text, ``method[,option=value…][,label=…]``, and which of them may become the model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import get_type_hints

from ccvr.calibration.spec import UNCALIBRATED, Calibration, CalibrationOptions, CalibrationSpec
from ccvr.calibration.table import find_calibrator
from ccvr.core.errors import SpecError
from ccvr.core.fields import parse, require_finite
from ccvr.core.tables import suggestion

SELECT = "select"


def parse_calibration(text: str, base: CalibrationOptions) -> Calibration:
    """One method with its options on top of the section's; options that the method does not read are refused."""
    method, *pairs = text.split(",")
    row, hints = find_calibrator(method), get_type_hints(CalibrationOptions)
    changes = _changes(text, pairs, [*(hints if row.reads is None else row.reads), "label"])
    label = changes.pop("label", method.rpartition(":")[2])
    if not re.fullmatch(r"[\w+-][\w.+-]{0,99}", label) or label in (UNCALIBRATED, SELECT):
        raise SpecError(
            f'calibration label "{label}" is not usable; use at most 100 letters, digits and . _ + -, '
            f"not a dot first, not {UNCALIBRATED} or {SELECT}."
        )
    options = {field.name: getattr(base, field.name) for field in dataclasses.fields(CalibrationOptions)}
    options |= {key: parse(hints[key], value, f"calibration.{key}") for key, value in changes.items()}
    parsed = CalibrationOptions(**options)
    require_finite(parsed, "calibration.")
    if not row.raw:
        row.kind_of(parsed)
    return Calibration(method, label, parsed)


def _changes(text: str, pairs: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The options in a method's text; only those that it reads."""
    changes: dict[str, str] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in known:
            raise SpecError(f'{text.partition(",")[0]} has no option "{key}".{suggestion(key, known)}')
        if key in changes:
            raise SpecError(f'calibration "{text}" gives {key} twice. Leave one out.')
        changes[key] = value
    return changes


def parse_calibrations(spec: CalibrationSpec) -> tuple[Calibration, ...]:
    """All calibrations of a spec, checked: known methods, one label each, a deployable one to deploy."""
    calibrations = tuple(parse_calibration(text, _shared(spec, text)) for text in spec.methods)
    labels = [calibration.label for calibration in calibrations]
    for label in labels:
        if labels.count(label) > 1:
            raise SpecError(f'two calibrations are labelled "{label}". Give each its own with label=….')
    require_deployable(spec.deploy or next(iter(labels), UNCALIBRATED), methods_of(calibrations))
    return calibrations


def _shared(spec: CalibrationSpec, text: str) -> CalibrationSpec:
    """The section's options; a kind that is meant for other methods does not bind this one."""
    row = find_calibrator(text.partition(",")[0])
    return spec if spec.kind in ("", *row.kinds) else dataclasses.replace(spec, kind="")


def methods_of(calibrations: Sequence[Calibration]) -> dict[str, str]:
    """The method of each label."""
    return {calibration.label: calibration.method for calibration in calibrations}


def require_deployable(label: str, methods: Mapping[str, str]) -> None:
    """Refuse a label that nobody has, and one whose ``methods`` entry needs raw features."""
    allowed = [name for name, method in methods.items() if not find_calibrator(method).raw] + [UNCALIBRATED]
    if label in allowed or label == SELECT:
        return
    fact = "needs every client's raw features and cannot be deployed" if label in methods else "is no label"
    raise SpecError(f'calibration.deploy is "{label}", which {fact}. Choose one of: {", ".join(allowed)}.')
