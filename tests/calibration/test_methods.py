"""How calibrations are written: method, options behind commas, a label, and one that is deployed."""

import dataclasses
import sys

import pytest
import torch

from ccvr.calibration.calibrator import fit_head
from ccvr.calibration.closed_forms import Kernel, Lda
from ccvr.calibration.methods import (
    Calibration,
    methods_of,
    parse_calibration,
    parse_calibrations,
    require_deployable,
)
from ccvr.calibration.oracles import Oracle
from ccvr.calibration.spec import CalibrationSpec
from ccvr.calibration.table import CALIBRATORS
from ccvr.calibration.virtual import Ccvr, CcvrConverged
from ccvr.core.errors import CalibrationError, SpecError, StatisticsError, UnknownName
from ccvr.core.methods import option_names
from ccvr.models.heads import LinearHead
from ccvr.statistics.collect import statistics_of
from ccvr.statistics.kinds import KINDS
from ccvr.statistics.request import Request

DEFAULTS = {"num_virtual": 7, "lr": 0.5, "ridge": 0.25, "per_class": 3, "seed": 11}
OF_CCVR = (
    "Known: batch_size, epochs, kind, label, lr, matched, min_count, momentum, num_virtual, priors, seed, "
    "shrinkage, start, transform, transform_at, weight_decay."
)
OF_NCM = "Known: kind, label, min_count, seed, taps, transform."
NO_CALIBRATOR = 'calibrator "json:loads" is not a dataclass derived from Calibrator. Write it so (docs/extending.md).'
LABELS = "use at most 100 letters, digits and . _ + -, not a dot first, not uncalibrated or select."
EIGHT = {"min_count": 8}
OTHER = {
    "num_virtual": 3,
    "priors": "counts",
    "shrinkage": "oas",
    "transform": "tukey:0.25",
    "transform_at": "draws",
    "taps": "conv1",
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
"""Another value than the default for every option, but for two whose values or defaults differ by method."""


def message_of(error: type[Exception], call) -> str:
    with pytest.raises(error) as refused:
        call()
    return str(refused.value)


# --- one calibration --------------------------------------------------------------------------------------------------


def own(name: str) -> dict[str, object]:
    """The defaults above that a method has an option for."""
    return {key: value for key, value in DEFAULTS.items() if key in option_names(CALIBRATORS[name])}


def test_a_method_alone_has_its_own_name_and_defaults():
    assert parse_calibration("ccvr") == Calibration("ccvr", "ccvr", Ccvr())


@pytest.mark.parametrize("name", CALIBRATORS)
def test_defaults_are_for_the_options_that_a_method_has(name):
    method = CALIBRATORS[name](**own(name))
    assert parse_calibration(name, DEFAULTS) == Calibration(name, name, method)
    assert method != CALIBRATORS[name]()


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
        ("kernel,taps=", {"taps": ""}),
        ("ccvr,transform=tukey:0.5,transform_at=draws", {"transform": "tukey:0.5", "transform_at": "draws"}),
        ("oracle,start=zero,batch_size=1", {"start": "zero", "batch_size": 1}),
        ("oracle,lr=1e-2,momentum=0,weight_decay=0.1", {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.1}),
        ("oracle-partial,per_class=9", {"per_class": 9}),
    ],
)
def test_options_behind_commas(text, changes):
    name = text.partition(",")[0]
    found = parse_calibration(text, DEFAULTS)
    assert found.method == CALIBRATORS[name](**{**own(name), **changes})
    assert found.label == found.name == name
    for key, value in changes.items():
        assert type(getattr(found.method, key)) is type(value)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_option_of_a_method_can_be_changed_and_no_other(name):
    """A contract over classes and fields: a new option is reachable from a method, whatever its type."""
    cls, has = CALIBRATORS[name], option_names(CALIBRATORS[name])
    base = cls()
    other = {**OTHER, "kind": cls.kinds[-1] if cls.kinds else "", "matched": not getattr(base, "matched", False)}
    assert set(has) <= set(other)
    for key in other:
        text = f"{name},{key}={other[key]}"
        if key in has:
            assert parse_calibration(text).method == dataclasses.replace(base, **{key: other[key]})
            assert other[key] != getattr(base, key)
        else:
            message = message_of(SpecError, lambda text=text: parse_calibration(text))
            assert message.startswith(f'{name} has no option "{key}".'), message
            known = message.rpartition("Known: ")[2].removesuffix(".").split(", ")
            assert known == sorted([*has, "label"])


def test_every_value_above_is_some_method_s():
    assert {*OTHER, "kind", "matched"} == {key for cls in CALIBRATORS.values() for key in option_names(cls)}


@pytest.mark.parametrize("name", [name for name, cls in CALIBRATORS.items() if "kind" in option_names(cls)])
def test_a_kind_that_a_method_cannot_use(name):
    kinds = CALIBRATORS[name].kinds
    for kind in KINDS:
        if kind in kinds:
            assert parse_calibration(f"{name},kind={kind}").method.request().kind == kind
        else:
            message = message_of(SpecError, lambda kind=kind: parse_calibration(f"{name},kind={kind}"))
            known = ", ".join(kinds)
            assert message == f'kind is "{kind}", which this method cannot use. It can use: {known}.'
            assert message == message_of(SpecError, lambda kind=kind: parse_calibration(name, {"kind": kind}))
    assert parse_calibration(name).method.request().kind == kinds[0], "without one, the best"
    message = message_of(StatisticsError, lambda: parse_calibration(f"{name},kind=ful"))
    assert message.startswith('no kind of statistics "ful". Did you mean "full"?')


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("ccvr,label=few", "few"),
        ("ccvr,num_virtual=5,label=A_1.b+c-d", "A_1.b+c-d"),
        ("my_calibrators:Fancy", "Fancy"),
        ("my_calibrators:Rows.Fancy", "Rows.Fancy"),
        ("my_calibrators:Fancy,label=mine", "mine"),
    ],
)
def test_labels(text, label, my_calibrators):
    assert parse_calibration(text).label == label


def test_the_section_s_methods_and_deploy_are_no_options_of_a_method():
    message = message_of(SpecError, lambda: parse_calibration("ccvr,deploy=x"))
    assert message == f'ccvr has no option "deploy". {OF_CCVR}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ccvr,epoch=3", f'ccvr has no option "epoch". Did you mean "epochs"? {OF_CCVR}'),
        ("ccvr,", f'ccvr has no option "". {OF_CCVR}'),
        ("ccvr,epochs", 'ccvr: epochs is ""; give a whole number.'),
        ("ccvr,epochs=two", 'ccvr: epochs is "two"; give a whole number.'),
        ("ccvr,epochs=2.5", 'ccvr: epochs is "2.5"; give a whole number.'),
        ("ccvr,lr=fast", 'ccvr: lr is "fast"; give a number.'),
        ("ccvr,priors=some", "ccvr: priors is 'some'; give one of uniform, counts."),
        ("ccvr,per_class=5", f'ccvr has no option "per_class". {OF_CCVR}'),
        ("ncm,ridge=0.1", f'ncm has no option "ridge". {OF_NCM}'),
        ("ncm,tap=a", f'ncm has no option "tap". Did you mean "taps"? {OF_NCM}'),
        ("ccvr,epochs=3,epochs=4", 'ccvr gives the option "epochs" twice. Leave one out.'),
        ("lda,shrinkage=oaz", 'no shrinkage "oaz". Did you mean "oas"? Known: fixed, none, oas, pooled.'),
        ("lda,shrinkage=fixed:x", 'shrinkage "fixed:x" has the amount "x"; give a number: fixed:0.1.'),
        ("lda,shrinkage=fixed:2", "the amount of shrinkage is 2.0; give a number from 0 to 1."),
        ("ridge,ridge=-1", "ridge is -1.0; give at least 0."),
        ("ridge,ridge=inf", "ridge: ridge is inf; give a finite number."),
        ("ccvr-converged,l2=nan", "l2 is nan; give at least 0."),
        ("ccvr-converged,iterations=0", "iterations is 0; give at least 1."),
        ("kernel,num_features=0", "num_features is 0; give at least 1."),
        ("kernel,bandwidth=0", "bandwidth is 0.0; give a number above 0."),
        ("ncm,min_count=-1", "min_count is -1; give at least 0."),
        ("ccvr,transform_at=x", "ccvr: transform_at is 'x'; give one of statistics, draws."),
        ("ccvr,start=x", "ccvr: start is 'x'; give one of trained, zero."),
        ("ccvr,num_virtual=0", "num_virtual is 0; give at least 1."),
        ("ccvr,epochs=0", "epochs is 0; give at least 1."),
        ("ccvr,batch_size=0", "batch_size is 0; give at least 1."),
        ("oracle-partial,per_class=-1", "per_class is -1; give at least 1."),
        ("ccvr,momentum=-0.1", "momentum is -0.1; give at least 0."),
        ("ccvr,weight_decay=nan", "weight_decay is nan; give at least 0."),
        ("ccvr,lr=0", "lr is 0.0; give a number above 0."),
        ("ccvr,lr=nan", "lr is nan; give a number above 0."),
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
    assert message_of(SpecError, lambda: parse_calibration(text)) == message


def test_no_method_at_all():
    for text in ("", ",epochs=3"):
        message = message_of(UnknownName, lambda text=text: parse_calibration(text))
        assert message.startswith('no calibrator "". Known: ccvr, ccvr-converged')


# --- all of a spec ----------------------------------------------------------------------------------------------------


def test_all_calibrations_of_a_spec():
    spec = CalibrationSpec(methods=("ccvr,epochs=4", "ccvr,num_virtual=50,label=few", "oracle,epochs=50"))
    assert parse_calibrations(spec) == (
        Calibration("ccvr", "ccvr", Ccvr(epochs=4)),
        Calibration("ccvr", "few", Ccvr(num_virtual=50)),
        Calibration("oracle", "oracle", Oracle(epochs=50)),
    )


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
            NO_CALIBRATOR,
        ),
        (
            CalibrationSpec(methods=("ccvr", "oracle", "ccvr,epochs=3")),
            SpecError,
            'two calibrations are labelled "ccvr". Give each its own with label=….',
        ),
        (
            CalibrationSpec(methods=("ccvr", "oracle", "ccvr,label=few"), deploy="ccrv"),
            SpecError,
            'calibration.deploy is "ccrv", which is not a label. Choose one of: ccvr, few, uncalibrated.',
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
            'calibration.deploy is "ccvr", which is not a label. Choose one of: uncalibrated.',
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
    assert message == NO_CALIBRATOR


# --- a user's own -----------------------------------------------------------------------------------------------------

MODULE = """
import torch
from dataclasses import dataclass
from typing import ClassVar
from ccvr.calibration.calibrator import Calibrator, FromStatistics
from ccvr.models.heads import copy_head

@dataclass(frozen=True, kw_only=True)
class NearestMean(Calibrator):
    scale: float = 1.0
    epochs: int = 10

    def fit(self, head, statistics, *, rng):
        mean = self.scale * statistics.mean.float()
        new = copy_head(head)
        with torch.no_grad():
            new.weight.copy_(mean)
            new.bias.copy_(-0.5 * (mean**2).sum(1))
        return new

@dataclass(frozen=True, kw_only=True)
class Peek(NearestMean):
    raw: ClassVar[bool] = True

@dataclass(frozen=True, kw_only=True)
class Fancy(FromStatistics):
    kinds: ClassVar[tuple[str, ...]] = ("means", "pooled")
    strength: int = 3

@dataclass(frozen=True, kw_only=True)
class Nothing(Calibrator):
    def fit(self, head, statistics, *, rng):
        return None

@dataclass(frozen=True)
class Alone:
    pass

class Rows:
    Fancy = Peek
"""


@pytest.fixture
def my_calibrators(tmp_path, monkeypatch):
    (tmp_path / "my_calibrators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_calibrators", None)


STATISTICS = statistics_of(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0, 1]), 2)
HEAD = LinearHead(torch.zeros(2, 2), torch.zeros(2))


def test_a_calibrator_of_the_user_s_own(my_calibrators):
    spec = CalibrationSpec(methods=("my_calibrators:NearestMean,scale=2,seed=5", "ccvr"))
    calibration, _ = parse_calibrations(spec)
    method = calibration.method
    assert (calibration.label, method.scale, method.epochs, method.seed) == ("NearestMean", 2.0, 10, 5)
    assert method.request() == Request("full")

    new = fit_head(method, HEAD, STATISTICS, seed=0)
    assert new.weight.tolist() == [[4, 0], [0, 8]]
    assert new.bias.tolist() == [-8, -32]
    message = message_of(
        SpecError,
        lambda: parse_calibrations(CalibrationSpec(methods=("my_calibrators:Peek",), deploy="Peek")),
    )
    assert message == (
        'calibration.deploy is "Peek", which needs every client\'s raw features and cannot be deployed. '
        "Choose one of: uncalibrated."
    )


def test_the_options_of_a_calibrator_of_the_user_s_own_are_its_fields(my_calibrators):
    assert parse_calibration("my_calibrators:NearestMean,epochs=3").method.epochs == 3
    message = message_of(SpecError, lambda: parse_calibration("my_calibrators:NearestMean,lr=3"))
    assert message == 'my_calibrators:NearestMean has no option "lr". Known: epochs, label, scale, seed.'
    message = message_of(SpecError, lambda: parse_calibration("my_calibrators:NearestMean,scale=big"))
    assert message == 'my_calibrators:NearestMean: scale is "big"; give a number.'
    message = message_of(SpecError, lambda: parse_calibration("my_calibrators:NearestMean,epochs=0"))
    assert message == "epochs is 0; give at least 1.", "options that calibrators share have the same limits"


def test_a_calibrator_of_the_user_s_own_asks_for_its_best_kind(my_calibrators):
    method = parse_calibration("my_calibrators:Fancy,transform=tukey").method
    assert method.request() == Request("means", "tukey:0.5")
    method = parse_calibration("my_calibrators:Fancy,kind=pooled,min_count=4").method
    assert method.request() == Request("pooled", min_count=4)


def test_what_does_not_derive_from_calibrator_is_none(my_calibrators):
    message = message_of(SpecError, lambda: parse_calibration("my_calibrators:Alone"))
    assert message.startswith('calibrator "my_calibrators:Alone" is not a dataclass derived from Calibrator.')


def test_a_calibrator_that_gives_no_head(my_calibrators):
    method = parse_calibration("my_calibrators:Nothing").method
    message = message_of(CalibrationError, lambda: fit_head(method, HEAD, STATISTICS, seed=0))
    assert message == "the calibrator Nothing gave a NoneType; it must be a Head."


# --- what statistics a method wants -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "none"),
        ({"transform": "tukey:0.5"}, "tukey:0.5"),
        ({"transform": "tukey:0.5", "transform_at": "draws"}, "none"),
        ({"transform_at": "draws"}, "none"),
    ],
)
@pytest.mark.parametrize("cls", [Ccvr, CcvrConverged])
def test_statistics_of_raw_features_are_wanted_where_draws_are_transformed(cls, options, wanted):
    assert cls(**options).request() == Request("full", wanted)


def test_a_method_that_draws_nothing_wants_statistics_of_transformed_features():
    method = parse_calibration("lda", {"transform": "tukey:0.5", "transform_at": "draws"}).method
    assert method.request().transform == "tukey:0.5"


def test_taps():
    assert Kernel().request().taps == "auto"
    assert Kernel(taps="").request().taps == ""
    assert Lda().request().taps == ""
    assert Lda(taps="conv1+fc1").request().taps == "conv1+fc1"
