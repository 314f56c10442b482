"""How calibrations are written: method, options behind commas, a label, and one that is deployed."""

import dataclasses
import sys

import pytest
import torch

from ccvr.calibration.methods import methods_of, parse_calibration, parse_calibrations, require_deployable
from ccvr.calibration.spec import Calibration, CalibrationOptions, CalibrationSpec
from ccvr.calibration.table import CALIBRATORS, Calibrator
from ccvr.core.errors import SpecError, UnknownName
from ccvr.models.heads import LinearHead
from ccvr.statistics.collect import statistics_of

BASE = CalibrationOptions(num_virtual=7, lr=0.5, seed=11)
OF_CCVR = (
    "Known: batch_size, epochs, kind, label, lr, matched, min_count, momentum, num_virtual, priors, seed, "
    "shrinkage, start, transform, transform_at, weight_decay."
)
OF_NCM = "Known: kind, label, min_count, seed, taps, transform."
LABELS = "use at most 100 letters, digits and . _ + -, not a dot first, not uncalibrated or select."
EIGHT = {"min_count": 8}
OTHER = {
    "num_virtual": 3,
    "matched": True,
    "priors": "counts",
    "shrinkage": "oas",
    "transform": "tukey:0.25",
    "transform_at": "draws",
    "kind": "",
    "taps": "auto",
    "min_count": 9,
    "start": "zero",
    "epochs": 4,
    "batch_size": 5,
    "lr": 0.25,
    "momentum": 0.5,
    "weight_decay": 0.125,
    "l2": 0.75,
    "iterations": 12,
    "ridge": 0.01,
    "num_features": 13,
    "bandwidth": 1.5,
    "per_class": 6,
    "seed": 8,
}
"""Another value than the default for every option."""


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
        ("ccvr,priors=counts,epochs=3", {"priors": "counts", "epochs": 3}),
        ("ccvr,kind=diagonal,shrinkage=fixed:0.2,min_count=8", {"kind": "diagonal", "shrinkage": "fixed:0.2"} | EIGHT),
        ("ccvr-converged,l2=0.01,iterations=9", {"l2": 0.01, "iterations": 9}),
        ("lda,kind=full,taps=a.b+c,priors=counts", {"kind": "full", "taps": "a.b+c", "priors": "counts"}),
        ("ridge,taps=,ridge=0", {"taps": "", "ridge": 0.0}),
        ("kernel,num_features=9,bandwidth=0.7", {"num_features": 9, "bandwidth": 0.7}),
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


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_option_that_a_method_reads_can_be_changed_and_no_other(name):
    """A contract over rows and fields: a new option is reachable from a method, whatever its type."""
    fields = [field.name for field in dataclasses.fields(CalibrationOptions)]
    row, base = CALIBRATORS[name], CalibrationOptions()
    other = {**OTHER, "kind": row.kinds[-1] if row.kinds else ""}
    assert set(other) == set(fields) >= row.reads
    for key in fields:
        text = f"{name},{key}={other[key]}"
        if key in row.reads:
            assert parse_calibration(text, base).options == dataclasses.replace(base, **{key: other[key]})
            assert other[key] != getattr(base, key)
        else:
            message = message_of(SpecError, lambda text=text: parse_calibration(text, base))
            assert message.startswith(f'{name} has no option "{key}".'), message
            known = message.rpartition("Known: ")[2].removesuffix(".").split(", ")
            assert known == sorted([*row.reads, "label"])


def test_every_option_is_read_by_some_method():
    read = frozenset().union(*(row.reads for row in CALIBRATORS.values()))
    assert read == {field.name for field in dataclasses.fields(CalibrationOptions)}


@pytest.mark.parametrize("name", [name for name, row in CALIBRATORS.items() if "kind" in row.reads])
def test_a_kind_that_a_method_cannot_use(name):
    row = CALIBRATORS[name]
    for kind in ("full", "pooled", "diagonal", "means", "kernel", "ful"):
        if kind in row.kinds:
            assert row.kind_of(parse_calibration(f"{name},kind={kind}", BASE).options) == kind
        else:
            message = message_of(SpecError, lambda kind=kind: parse_calibration(f"{name},kind={kind}", BASE))
            known = ", ".join(row.kinds)
            assert message == (f'calibration.kind is "{kind}", which this method cannot use. It can use: {known}.')
    assert row.kind_of(BASE) == row.kinds[0], "without one, the best"


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("ccvr,label=few", "few"),
        ("ccvr,num_virtual=5,label=A_1.b+c-d", "A_1.b+c-d"),
        ("my_calibrators:fancy", "fancy"),
        ("my_calibrators:Rows.fancy", "Rows.fancy"),
        ("my_calibrators:fancy,label=mine", "mine"),
    ],
)
def test_labels(text, label, my_calibrators):
    assert parse_calibration(text, BASE).label == label


def test_the_section_s_methods_and_deploy_are_no_options_of_a_method():
    spec = CalibrationSpec(num_virtual=7, methods=("ccvr",), deploy="ccvr")
    assert type(parse_calibration("ccvr", spec).options) is CalibrationOptions
    assert parse_calibration("ccvr", spec).options == CalibrationOptions(num_virtual=7)
    message = message_of(SpecError, lambda: parse_calibration("ccvr,deploy=x", spec))
    assert message == f'ccvr has no option "deploy". {OF_CCVR}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ccvr,epoch=3", f'ccvr has no option "epoch". Did you mean "epochs"? {OF_CCVR}'),
        ("ccvr,", f'ccvr has no option "". {OF_CCVR}'),
        ("ccvr,epochs", 'calibration.epochs is ""; give a whole number.'),
        ("ccvr,epochs=two", 'calibration.epochs is "two"; give a whole number.'),
        ("ccvr,epochs=2.5", 'calibration.epochs is "2.5"; give a whole number.'),
        ("ccvr,lr=fast", 'calibration.lr is "fast"; give a number.'),
        ("ccvr,priors=some", "calibration.priors is 'some'; give one of uniform, counts."),
        ("ccvr,per_class=5", f'ccvr has no option "per_class". {OF_CCVR}'),
        ("ncm,ridge=0.1", f'ncm has no option "ridge". {OF_NCM}'),
        ("ncm,tap=a", f'ncm has no option "tap". Did you mean "taps"? {OF_NCM}'),
        ("ccvr,epochs=3,epochs=4", 'calibration "ccvr,epochs=3,epochs=4" gives epochs twice. Leave one out.'),
        ("lda,shrinkage=oaz", 'no shrinkage "oaz". Did you mean "oas"? Known: fixed, none, oas, pooled.'),
        ("lda,shrinkage=fixed:x", 'shrinkage "fixed:x" has the amount "x"; give a number: fixed:0.1.'),
        ("lda,shrinkage=fixed:2", "the amount of shrinkage is 2.0; give a number from 0 to 1."),
        ("ridge,ridge=-1", "calibration.ridge is -1.0; give at least 0."),
        ("ridge,ridge=inf", "calibration.ridge is inf; give a finite number."),
        ("ccvr-converged,l2=nan", "calibration.l2 is nan; give at least 0."),
        ("ccvr-converged,iterations=0", "calibration.iterations is 0; give at least 1."),
        ("kernel,num_features=0", "calibration.num_features is 0; give at least 1."),
        ("kernel,bandwidth=0", "calibration.bandwidth is 0.0; give a number above 0."),
        ("ncm,min_count=-1", "calibration.min_count is -1; give at least 0."),
        ("ccvr,transform_at=x", "calibration.transform_at is 'x'; give one of statistics, draws."),
        ("ccvr,start=x", "calibration.start is 'x'; give one of trained, zero."),
        ("ccvr,num_virtual=0", "calibration.num_virtual is 0; give at least 1."),
        ("ccvr,epochs=0", "calibration.epochs is 0; give at least 1."),
        ("ccvr,batch_size=0", "calibration.batch_size is 0; give at least 1."),
        ("oracle-partial,per_class=-1", "calibration.per_class is -1; give at least 1."),
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
        ("ccvr,label=select", f'calibration label "select" is not usable; {LABELS}'),
        ("ccvr,label=", f'calibration label "" is not usable; {LABELS}'),
    ],
)
def test_errors_of_one_calibration(text, message):
    assert message_of(SpecError, lambda: parse_calibration(text, BASE)) == message


def test_no_method_at_all():
    for text in ("", ",epochs=3"):
        message = message_of(UnknownName, lambda text=text: parse_calibration(text, BASE))
        assert message.startswith('no calibrator "". Known: ccvr, ccvr-converged')


# --- all of a spec ----------------------------------------------------------------------------------------------------


def test_all_calibrations_of_a_spec():
    spec = CalibrationSpec(epochs=4, methods=("ccvr", "ccvr,num_virtual=50,label=few", "oracle,epochs=50"))
    found = parse_calibrations(spec)
    assert [(row.method, row.label, row.options.num_virtual, row.options.epochs) for row in found] == [
        ("ccvr", "ccvr", 2000, 4),
        ("ccvr", "few", 50, 4),
        ("oracle", "oracle", 2000, 50),
    ]


def test_a_kind_of_the_section_binds_the_methods_that_can_use_it():
    found = parse_calibrations(CalibrationSpec(kind="full", methods=("ccvr", "lda", "cof-means", "kernel", "oracle")))
    assert [row.options.kind for row in found] == ["full", "full", "", "", ""]


def test_the_defaults_are_sound():
    assert [row.label for row in parse_calibrations(CalibrationSpec())] == ["ccvr", "oracle"]


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (
            CalibrationSpec(methods=("ccrv",)),
            UnknownName,
            'no calibrator "ccrv". Did you mean "ccvr"? Known: ccvr, '
            "ccvr-converged, cof, cof-means, kernel, lda, ncm, oracle, oracle-partial, ridge.",
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
    ("methods", "deploy"),
    [
        (("ccvr", "ccvr,label=few"), ""),
        (("ccvr", "ccvr,label=few"), "few"),
        (("ccvr",), "uncalibrated"),
        (("ccvr", "lda"), "select"),
        ((), ""),
        (("oracle",), "uncalibrated"),
        (("oracle",), "select"),
    ],
    ids=["the first", "the chosen", "none", "the best", "none there", "an oracle beside", "nothing but an oracle"],
)
def test_what_can_be_deployed(methods, deploy):
    assert len(parse_calibrations(CalibrationSpec(methods=methods, deploy=deploy))) == len(methods)


def test_the_method_of_each_label():
    spec = CalibrationSpec(methods=("ccvr", "ccvr,label=few", "oracle,label=all"))
    methods = methods_of(parse_calibrations(spec))
    assert methods == {"ccvr": "ccvr", "few": "ccvr", "all": "oracle"}
    for label in ("ccvr", "few", "uncalibrated", "select"):
        require_deployable(label, methods)
    message = message_of(SpecError, lambda: require_deployable("all", methods))
    assert message.startswith('calibration.deploy is "all", which needs every client\'s raw features')


def test_deploying_later_refuses_what_is_no_calibrator():
    message = message_of(SpecError, lambda: require_deployable("mine", {"mine": "json:loads"}))
    assert message == '"json:loads" is no Calibrator. Wrap it: Calibrator(fit) of ccvr.calibration.table.'


# --- a user's own -----------------------------------------------------------------------------------------------------

MODULE = """
import torch
from ccvr.calibration.table import Calibrator
from ccvr.models.heads import copy_head

def nearest_mean(head, statistics, options, *, rng):
    mean = statistics.mean.float()
    new = copy_head(head)
    with torch.no_grad():
        new.weight.copy_(mean)
        new.bias.copy_(-0.5 * (mean**2).sum(1))
    return new

ncm = fancy = Calibrator(nearest_mean)
peek = Calibrator(nearest_mean, raw=True)
narrow = Calibrator(nearest_mean, kinds=("means",), reads=frozenset({"lr"}))

class Rows:
    fancy = fancy
"""


@pytest.fixture
def my_calibrators(tmp_path, monkeypatch):
    (tmp_path / "my_calibrators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_calibrators", None)


def test_a_calibrator_of_the_user_s_own(my_calibrators):
    spec = CalibrationSpec(methods=("my_calibrators:ncm,epochs=3,per_class=4,seed=5", "ccvr"))
    calibration, _ = parse_calibrations(spec)
    found = calibration.options
    assert (calibration.label, found.epochs, found.per_class, found.seed) == ("ncm", 3, 4, 5), "it may read all options"
    row = CALIBRATORS[calibration.method]
    assert row.kind_of(found) == "full"

    statistics = statistics_of(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0, 1]), 2)
    head = LinearHead(torch.zeros(2, 2), torch.zeros(2))
    new = row.fit(head, statistics, found, rng=torch.Generator())
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


def test_a_calibrator_of_the_user_s_own_that_reads_few_options(my_calibrators):
    assert parse_calibration("my_calibrators:narrow,lr=0.5", CalibrationOptions()).options.lr == 0.5
    message = message_of(SpecError, lambda: parse_calibration("my_calibrators:narrow,epochs=3", BASE))
    assert message == 'my_calibrators:narrow has no option "epochs". Known: label, lr.'


# --- what statistics a method wants -----------------------------------------------------------------------------------


def none_fits(*_args, **_kwargs):
    raise AssertionError("nothing is fitted here")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "none"),
        ({"transform": "tukey:0.5"}, "tukey:0.5"),
        ({"transform": "tukey:0.5", "transform_at": "draws"}, "none"),
        ({"transform_at": "draws"}, "none"),
    ],
)
@pytest.mark.parametrize("reads", [None, frozenset({"transform", "transform_at"})], ids=["all", "two"])
def test_statistics_of_raw_features_are_wanted_where_draws_are_transformed(reads, options, wanted):
    row = Calibrator(none_fits, reads=reads)
    assert str(row.transform_of_statistics(CalibrationOptions(**options))) == wanted


def test_a_method_that_draws_nothing_wants_statistics_of_transformed_features():
    options = CalibrationOptions(transform="tukey:0.5", transform_at="draws")  # of the section, meant for others
    assert str(CALIBRATORS["lda"].transform_of_statistics(options)) == "tukey:0.5"


def test_taps():
    assert CALIBRATORS["kernel"].taps_of(CalibrationOptions()) == "auto"
    assert CALIBRATORS["kernel"].taps_of(CalibrationOptions(taps="")) == ""
    assert CALIBRATORS["lda"].taps_of(CalibrationOptions()) == ""
    assert CALIBRATORS["lda"].taps_of(CalibrationOptions(taps="conv1+fc1")) == "conv1+fc1"
