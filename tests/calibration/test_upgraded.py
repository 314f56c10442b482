"""Calibrations as they were written before methods had options of their own, and as tables."""

import pytest

from ccvr.calibration.closed_forms import Cof, CofMeans, Kernel, Lda, Ncm, Ridge
from ccvr.calibration.methods import Calibration, current_options, parse_calibrations, upgraded
from ccvr.calibration.oracles import Oracle, OraclePartial
from ccvr.calibration.spec import CalibrationSpec
from ccvr.calibration.table import CALIBRATORS
from ccvr.calibration.virtual import Ccvr, CcvrConverged
from ccvr.cli.calibrate import CalibrateArguments, _variants
from ccvr.core.errors import SpecError, UnknownName
from ccvr.core.fields import build
from ccvr.core.run import RunFolder
from ccvr.experiment.spec import read_spec

DEFAULTS = {
    "num_virtual": 2000,
    "priors": "uniform",
    "shrinkage": "none",
    "transform": "none",
    "transform_at": "statistics",
    "kind": "",
    "min_count": 0,
    "start": "trained",
    "epochs": 10,
    "batch_size": 64,
    "lr": 0.001,
    "momentum": 0.9,
    "weight_decay": 1e-05,
    "l2": 0.001,
    "iterations": 300,
    "ridge": 0.001,
    "num_features": 2000,
    "bandwidth": 0.5,
    "per_class": 100,
}
"""What every file of before says of the options for all, where nobody changed one."""
OTHERS = {
    "num_virtual": 30,
    "matched": True,
    "priors": "counts",
    "shrinkage": "oas",
    "transform": "tukey:0.25",
    "transform_at": "draws",
    "kind": "pooled",
    "taps": "conv1",
    "min_count": 9,
    "start": "zero",
    "epochs": 4,
    "batch_size": 5,
    "lr": 0.25,
    "momentum": 0.5,
    "weight_decay": 1e-7,
    "l2": 0.75,
    "iterations": 12,
    "ridge": 2e-05,
    "num_features": 13,
    "bandwidth": 1.5,
    "per_class": 6,
    "seed": 8,
}
"""Every option that a section could have for all methods, with another value than the default."""
STATISTICS = {"transform": "tukey:0.25", "min_count": 9, "seed": 8}
DRAWS = {**STATISTICS, "kind": "pooled", "num_virtual": 30, "priors": "counts", "shrinkage": "oas"} | {
    "transform_at": "draws",
    "matched": True,
}
SGD = {"start": "zero", "epochs": 4, "batch_size": 5, "lr": 0.25, "momentum": 0.5, "weight_decay": 1e-7}
LAYERS = {**STATISTICS, "taps": "conv1"}
MEANT = {
    "ccvr": Ccvr(**DRAWS, **SGD),
    "ccvr-converged": CcvrConverged(**DRAWS, start="zero", l2=0.75, iterations=12),
    "lda": Lda(**LAYERS, kind="pooled", priors="counts", shrinkage="oas"),
    "ridge": Ridge(**LAYERS, kind="pooled", ridge=2e-05),
    "kernel": Kernel(min_count=9, seed=8, taps="conv1", ridge=2e-05, num_features=13, bandwidth=1.5),
    "cof": Cof(**LAYERS, kind="pooled", ridge=2e-05),
    "cof-means": CofMeans(**LAYERS, ridge=2e-05),
    "ncm": Ncm(**LAYERS, kind="pooled"),
    "oracle": Oracle(**SGD, transform="tukey:0.25", seed=8),
    "oracle-partial": OraclePartial(**SGD, transform="tukey:0.25", seed=8, per_class=6),
}
"""What they meant to each method, written down by hand."""


def read(section):
    """The calibrations of a section, of whatever version."""
    return parse_calibrations(build(CalibrationSpec, upgraded(section)))


def methods(section):
    return [each.method for each in read({"deploy": "uncalibrated", **section})]


# --- options for all methods ------------------------------------------------------------------------------------------


def test_every_method_and_every_option_of_before_is_here():
    assert set(MEANT) == set(CALIBRATORS)
    assert set(OTHERS) == {*DEFAULTS, "matched", "taps", "seed"}


@pytest.mark.parametrize("name", CALIBRATORS)
def test_options_for_all_are_those_of_each_method_that_has_them(name):
    assert methods({"methods": [name], **OTHERS}) == [MEANT[name]]


@pytest.mark.parametrize("name", CALIBRATORS)
def test_options_for_all_that_nobody_changed_change_nothing(name):
    assert upgraded({"methods": [name], **DEFAULTS}) == {"methods": [name]}
    assert methods({"methods": [name], **DEFAULTS}) == [CALIBRATORS[name]()]


@pytest.mark.parametrize("name", CALIBRATORS)
def test_what_is_none_is_left_to_the_method(name):
    """As matched, taps and seed were where nobody gave one."""
    assert upgraded({"methods": [name], **dict.fromkeys(OTHERS)}) == {"methods": [name]}


def test_options_behind_a_method_go_before_those_for_all():
    section = {"methods": ["ccvr", "ccvr,epochs=3,label=few", "oracle,epochs=50"], "epochs": 4, "num_virtual": 7}
    assert read(section) == (
        Calibration("ccvr", "ccvr", Ccvr(epochs=4, num_virtual=7)),
        Calibration("ccvr", "few", Ccvr(epochs=3, num_virtual=7)),
        Calibration("oracle", "oracle", Oracle(epochs=50)),
    )


def test_a_default_that_is_given_behind_a_method_stays():
    assert methods({"methods": ["ccvr,epochs=10"], "epochs": 4}) == [Ccvr(epochs=10)]
    assert methods({"methods": ["kernel,taps=auto"], "taps": ""}) == [Kernel(taps="auto")]


def test_a_kind_for_all_binds_the_methods_that_can_use_it_and_no_others():
    section = {"kind": "full", "methods": ["ccvr", "lda", "cof-means", "kernel", "ncm", "oracle"]}
    assert methods(section) == [Ccvr(kind="full"), Lda(kind="full"), CofMeans(), Kernel(), Ncm(kind="full"), Oracle()]
    texts = ["ccvr,kind=full", "lda,kind=full", "cof-means", "kernel", "ncm,kind=full", "oracle"]
    assert upgraded(section) == {"methods": texts}


def test_a_kind_behind_a_method_still_binds_it():
    with pytest.raises(SpecError, match=r'^kind is "full", which this method cannot use\. It can use: means\.$'):
        read({"kind": "full", "methods": ["cof-means,kind=full"]})
    assert methods({"kind": "full", "methods": ["lda,kind=pooled"]}) == [Lda(kind="pooled")]


def test_layers_for_all_are_those_of_methods_that_read_layers():
    assert methods({"methods": ["ccvr", "lda", "kernel"], "taps": "conv1+fc1"}) == [
        Ccvr(),
        Lda(taps="conv1+fc1"),
        Kernel(taps="conv1+fc1"),
    ]
    assert methods({"methods": ["lda", "kernel"], "taps": ""}) == [Lda(), Kernel(taps="")], "none at all"


@pytest.mark.parametrize("matched", [True, False])
def test_matched_draws_for_all(matched):
    section = {"methods": ["ccvr", "ccvr-converged"], "matched": matched}
    assert methods(section) == [Ccvr(matched=matched), CcvrConverged(matched=matched)]


def test_options_for_all_without_a_list_of_methods_are_for_the_default_ones():
    assert read({"num_virtual": 5}) == (
        Calibration("ccvr", "ccvr", Ccvr(num_virtual=5)),
        Calibration("oracle", "oracle", Oracle(epochs=50)),
    )


def test_a_section_of_this_version_is_left_as_it_is():
    for section in ({}, {"methods": ["ccvr,epochs=10", "json:loads"]}, {"deploy": "x"}, {"methods": []}):
        assert upgraded(section) == section


def test_an_upgraded_section_is_upgraded_no_further():
    once = upgraded({"methods": list(CALIBRATORS), "deploy": "lda", **OTHERS})
    assert upgraded(once) == once
    assert set(once) == {"methods", "deploy"}


def test_what_is_given_is_not_changed():
    section = {"methods": ["ccvr", {"name": "lda", "taps": "auto"}], "epochs": 3}
    upgraded(section)
    assert section == {"methods": ["ccvr", {"name": "lda", "taps": "auto"}], "epochs": 3}


# --- tables -----------------------------------------------------------------------------------------------------------


def test_methods_as_tables():
    tables = [
        {"name": "ccvr", "num_virtual": 50, "lr": 1e-4, "matched": True, "label": "few"},
        "oracle,epochs=3",
        {"name": "kernel", "taps": "", "bandwidth": 2},
        {"name": "lda"},
    ]
    assert read({"methods": tables}) == (
        Calibration("ccvr", "few", Ccvr(num_virtual=50, lr=1e-4, matched=True)),
        Calibration("oracle", "oracle", Oracle(epochs=3)),
        Calibration("kernel", "kernel", Kernel(taps="", bandwidth=2.0)),
        Calibration("lda", "lda", Lda()),
    )


def test_options_for_all_reach_tables_too():
    assert methods({"methods": [{"name": "ccvr", "epochs": 3}], "epochs": 4, "lr": 0.5}) == [Ccvr(epochs=3, lr=0.5)]


def test_a_table_with_an_option_that_its_method_does_not_have():
    with pytest.raises(SpecError, match=r'^lda has no option "epochs"\.'):
        read({"methods": [{"name": "lda", "epochs": 3}]})


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_a_key_that_nobody_knows_is_refused_and_not_forgotten():
    for section in ({"epoch": 3}, {"method": ["lda"]}, {"epoch": 3, "lr": 0.5}):
        with pytest.raises(SpecError, match=rf'^no field "calibration\.{next(iter(section))}"\.'):
            build(CalibrationSpec, upgraded(section), "calibration.")


def test_mistakes_are_told_where_methods_are_read():
    with pytest.raises(UnknownName, match=r'^no calibrator "ccrv"\. Did you mean "ccvr"\?'):
        read({"methods": ["ccrv"], "epochs": 3})
    with pytest.raises(SpecError, match=r'^calibrator "json:loads" is not a dataclass derived from Calibrator\.'):
        read({"methods": ["json:loads"], "epochs": 3})
    with pytest.raises(SpecError, match=r'^ccvr: epochs is "two"; give a whole number\.$'):
        read({"methods": ["ccvr"], "epochs": "two"})
    with pytest.raises(SpecError, match=r"^epochs is 0; give at least 1\.$"):
        read({"methods": ["ccvr"], "epochs": 0})
    with pytest.raises(SpecError, match=r"^methods is 'ccvr'; give a list\.$"):
        read({"methods": "ccvr", "epochs": 3})


# --- rows of results.json ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALIBRATORS)
def test_the_options_in_rows_of_before(name):
    """They have every option, those of other methods too, and None where the method chose."""
    row = {"method": name, "bytes": 3, "seconds": 0.1, **dict.fromkeys(OTHERS), **DEFAULTS, "seed": 4}
    options = {**vars(CALIBRATORS[name]()), "seed": 4}
    assert current_options(name, row) == options
    assert current_options(name, {"method": name, **options}) == options
    assert current_options(name, {**row, **vars(MEANT[name])}) == vars(MEANT[name])


def test_the_options_of_a_method_of_the_user_s_own_are_not_looked_for():
    assert current_options("nowhere.at_all:Mine", {"strength": 3}) == {}
    assert current_options("gone", {"strength": 3}) == {}


def test_a_method_that_an_old_run_did_not_list_gets_the_options_for_all(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    folder.spec.write_text(
        '[calibration]\nmethods = ["ccvr,epochs=3"]\ntransform = "tukey:0.5"\nnum_virtual = 60\nkind = "diagonal"\n'
    )
    arguments = CalibrateArguments(folder.path, method=("lda", "ccvr", "ccvr-converged,num_virtual=70"))
    groups = _variants(arguments, read_spec(folder.spec))
    lda, ccvr, converged = (groups[label][0].method for label in ("lda", "ccvr", "ccvr-converged"))
    assert (lda.transform, lda.kind) == ("tukey:0.5", ""), "lda cannot use diagonal statistics"
    assert (ccvr.transform, ccvr.num_virtual, ccvr.epochs, ccvr.kind) == ("tukey:0.5", 60, 3, "diagonal")
    assert (converged.transform, converged.num_virtual) == ("tukey:0.5", 70)
