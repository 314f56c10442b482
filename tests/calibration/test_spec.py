"""How calibrations are written in a spec: method, options behind commas, a label, and one that is deployed."""

import dataclasses

import pytest
import torch

from ccvr.calibration.spec import Calibration, CalibrationOptions, CalibrationSpec, parse_calibration
from ccvr.calibration.table import CALIBRATORS, deployed_label, parse_calibrations, require_deployable
from ccvr.core.errors import SpecError, UnknownName
from ccvr.models.heads import LinearHead
from ccvr.statistics.moments import statistics_of

BASE = CalibrationOptions(num_virtual=7, lr=0.5, seed=11)
KNOWN = (
    "allocation, batch_size, epochs, label, lr, momentum, num_virtual, per_class, seed, start, transform, "
    "transform_at, weight_decay"
)

LABELS = "use at most 100 letters, digits and . _ + -, not a dot first, not uncalibrated."


def message_of(error: type[Exception], call) -> str:
    with pytest.raises(error) as refused:
        call()
    return str(refused.value)


# --- one calibration --------------------------------------------------------------------------------------------------


def test_a_method_alone_takes_the_section_s_options_and_its_own_name():
    assert parse_calibration("ccvr", BASE) == Calibration("ccvr", "ccvr", BASE)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("ccvr,num_virtual=50", {"num_virtual": 50}),
        ("ccvr,allocation=proportional,epochs=3", {"allocation": "proportional", "epochs": 3}),
        ("ccvr,transform=tukey:0.5,transform_at=draws", {"transform": "tukey:0.5", "transform_at": "draws"}),
        ("oracle,start=zero,batch_size=1", {"start": "zero", "batch_size": 1}),
        ("oracle,lr=1e-2,momentum=0,weight_decay=0.1", {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.1}),
        ("oracle-partial,per_class=9", {"per_class": 9}),
    ],
)
def test_options_behind_commas(text, changes):
    found = parse_calibration(text, BASE)
    assert found.options == dataclasses.replace(BASE, **changes)
    assert found.label == found.method == text.partition(",")[0]
    for name, value in changes.items():
        assert type(getattr(found.options, name)) is type(value)


def test_every_option_can_be_changed_in_a_method():
    """A contract over the fields: a new option is reachable from a method, whatever its type."""
    other = CalibrationOptions(3, "proportional", "tukey:0.25", "draws", "zero", 4, 5, 0.25, 0.5, 0.125, 6, 7)
    pairs = [(field.name, getattr(other, field.name)) for field in dataclasses.fields(CalibrationOptions)]
    assert all(value != getattr(BASE, name) for name, value in pairs)
    text = ",".join(["ccvr", *(f"{name}={value}" for name, value in pairs)])
    assert parse_calibration(text, BASE).options == other


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("ccvr,label=few", "few"),
        ("ccvr,num_virtual=5,label=A_1.b+c-d", "A_1.b+c-d"),
        ("my.package.module:fancy", "fancy"),
        ("my.package.module:Rows.fancy", "Rows.fancy"),
        ("my.package.module:fancy,label=mine", "mine"),
    ],
)
def test_labels(text, label):
    assert parse_calibration(text, BASE).label == label


def test_the_section_s_methods_and_deploy_are_no_options_of_a_method():
    spec = CalibrationSpec(num_virtual=7, methods=("ccvr",), deploy="ccvr")
    assert type(parse_calibration("ccvr", spec).options) is CalibrationOptions
    assert parse_calibration("ccvr", spec).options == CalibrationOptions(num_virtual=7)
    message = message_of(SpecError, lambda: parse_calibration("ccvr,deploy=x", spec))
    assert message == f'no option "deploy" in calibration "ccvr,deploy=x". Known: {KNOWN}.'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ccvr,epoch=3", f'no option "epoch" in calibration "ccvr,epoch=3". Did you mean "epochs"? Known: {KNOWN}.'),
        ("ccvr,", f'no option "" in calibration "ccvr,". Known: {KNOWN}.'),
        ("ccvr,epochs", 'calibration.epochs is ""; give a whole number.'),
        ("ccvr,epochs=two", 'calibration.epochs is "two"; give a whole number.'),
        ("ccvr,epochs=2.5", 'calibration.epochs is "2.5"; give a whole number.'),
        ("ccvr,lr=fast", 'calibration.lr is "fast"; give a number.'),
        ("ccvr,allocation=some", "calibration.allocation is 'some'; give one of equal, proportional."),
        ("ccvr,transform_at=x", "calibration.transform_at is 'x'; give one of statistics, draws."),
        ("ccvr,start=x", "calibration.start is 'x'; give one of trained, zero."),
        ("ccvr,num_virtual=0", "calibration.num_virtual is 0; give at least 1."),
        ("ccvr,epochs=0", "calibration.epochs is 0; give at least 1."),
        ("ccvr,batch_size=0", "calibration.batch_size is 0; give at least 1."),
        ("ccvr,per_class=-1", "calibration.per_class is -1; give at least 1."),
        ("ccvr,momentum=-0.1", "calibration.momentum is -0.1; give at least 0."),
        ("ccvr,weight_decay=nan", "calibration.weight_decay is nan; give at least 0."),
        ("ccvr,lr=0", "calibration.lr is 0.0; give a number above 0."),
        ("ccvr,lr=nan", "calibration.lr is nan; give a number above 0."),
        (
            "ccvr,transform=tuckey",
            'no feature transform "tuckey". Did you mean "tukey"? Known: none, signed-tukey, tukey.',
        ),
        ("ccvr,transform=tukey:x", 'feature transform "tukey:x" has the power "x"; give a number: tukey:0.5.'),
        ("ccvr,transform=tukey:2", "the power of a feature transform is 2.0; give a number above 0, at most 1."),
        (
            "ccvr,label=a/b",
            f'calibration label "a/b" is not usable; {LABELS}',
        ),
        (
            "ccvr,label=uncalibrated",
            f'calibration label "uncalibrated" is not usable; {LABELS}',
        ),
        ("", f'calibration label "" is not usable; {LABELS}'),
    ],
)
def test_errors_of_one_calibration(text, message):
    assert message_of(SpecError, lambda: parse_calibration(text, BASE)) == message


# --- all of a spec ----------------------------------------------------------------------------------------------------


def test_all_calibrations_of_a_spec():
    spec = CalibrationSpec(epochs=4, methods=("ccvr", "ccvr,num_virtual=50,label=few", "oracle,epochs=50"))
    found = parse_calibrations(spec)
    assert [(row.method, row.label, row.options.num_virtual, row.options.epochs) for row in found] == [
        ("ccvr", "ccvr", 2000, 4),
        ("ccvr", "few", 50, 4),
        ("oracle", "oracle", 2000, 50),
    ]


def test_the_defaults_are_sound():
    assert [row.label for row in parse_calibrations(CalibrationSpec())] == ["ccvr", "oracle"]


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            CalibrationSpec(methods=("ccrv",)),
            UnknownName,
            'no calibrator "ccrv". Did you mean "ccvr"? Known: ccvr, oracle, oracle-partial.',
        ),
        (
            CalibrationSpec(methods=("nowhere.at_all:fit",)),
            UnknownName,
            "calibrator \"nowhere.at_all:fit\" cannot be imported (No module named 'nowhere'). "
            "Give package.module:name of something that Python finds.",
        ),
        (
            CalibrationSpec(methods=("json:loads",)),
            SpecError,
            '"json:loads" is no Calibrator. Wrap it: Calibrator(fit) of ccvr.calibration.table.',
        ),
        (
            CalibrationSpec(methods=("ccvr", "oracle", "ccvr,epochs=3")),
            SpecError,
            'two calibrations are labelled "ccvr". Give each its own with label=….',
        ),
        (
            CalibrationSpec(methods=("ccvr", "oracle", "ccvr,label=few"), deploy="ccrv"),
            SpecError,
            'calibration.deploy is "ccrv", which is no label. Choose one of: ccvr, few, uncalibrated.',
        ),
        (
            CalibrationSpec(methods=("ccvr", "oracle,label=all"), deploy="all"),
            SpecError,
            'calibration.deploy is "all", which needs every client\'s raw features and cannot be deployed. '
            "Choose one of: ccvr, uncalibrated.",
        ),
        (
            CalibrationSpec(methods=("oracle", "ccvr")),
            SpecError,
            'calibration.deploy is "oracle", which needs every client\'s raw features and cannot be deployed. '
            "Choose one of: ccvr, uncalibrated.",
        ),
        (
            CalibrationSpec(methods=(), deploy="ccvr"),
            SpecError,
            'calibration.deploy is "ccvr", which is no label. Choose one of: uncalibrated.',
        ),
    ],
)
def test_errors_of_a_spec(spec, error, message):
    assert message_of(error, lambda: parse_calibrations(spec)) == message


@pytest.mark.parametrize(
    ("methods", "deploy", "label"),
    [
        (("ccvr", "ccvr,label=few"), "", "ccvr"),
        (("ccvr", "ccvr,label=few"), "few", "few"),
        (("ccvr",), "uncalibrated", "uncalibrated"),
        ((), "", "uncalibrated"),
        (("oracle",), "uncalibrated", "uncalibrated"),
    ],
    ids=["the first", "the chosen", "none", "none there", "an oracle beside"],
)
def test_the_deployed_label(methods, deploy, label):
    spec = CalibrationSpec(methods=methods, deploy=deploy)
    assert deployed_label(spec, parse_calibrations(spec)) == label


def test_deploying_later_refuses_what_is_no_calibrator():
    message = message_of(SpecError, lambda: require_deployable("mine", {"mine": "json:loads"}))
    assert message == '"json:loads" is no Calibrator. Wrap it: Calibrator(fit) of ccvr.calibration.table.'


# --- a user's own -----------------------------------------------------------------------------------------------------

MODULE = """
import torch
from ccvr.calibration.table import Calibrator
from ccvr.models.heads import copy_head
from ccvr.models.transform import FeatureTransform

def nearest_mean(head, evidence, options, *, rng):
    statistics = evidence.statistics(FeatureTransform())
    mean = (statistics.total / statistics.count.clamp(min=1).unsqueeze(1)).float()
    new = copy_head(head)
    with torch.no_grad():
        new.weight.copy_(mean)
        new.bias.copy_(-0.5 * (mean**2).sum(1))
    return new

ncm = Calibrator(nearest_mean)
peek = Calibrator(nearest_mean, raw=True)
"""


def test_a_calibrator_of_the_user_s_own(tmp_path, monkeypatch):
    (tmp_path / "my_calibrators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    spec = CalibrationSpec(methods=("my_calibrators:ncm,epochs=3", "ccvr"))
    calibration, _ = parse_calibrations(spec)
    assert (calibration.label, calibration.options.epochs) == ("ncm", 3)
    assert deployed_label(spec, parse_calibrations(spec)) == "ncm"

    class Evidence:
        def statistics(self, transform):
            return statistics_of(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0, 1]), 2)

    head = LinearHead(torch.zeros(2, 2), torch.zeros(2))
    new = CALIBRATORS[calibration.method].fit(head, Evidence(), calibration.options, rng=torch.Generator())
    assert new.weight.tolist() == [[2, 0], [0, 4]]
    assert new.bias.tolist() == [-2, -8]
    message = message_of(
        SpecError,
        lambda: parse_calibrations(CalibrationSpec(methods=("my_calibrators:peek",), deploy="peek")),
    )
    assert message == (
        'calibration.deploy is "peek", which needs every client\'s raw features and cannot be deployed. '
        "Choose one of: uncalibrated."
    )
