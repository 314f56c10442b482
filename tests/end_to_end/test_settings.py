"""Every public function gives the same bits, whatever is set in torch around its call; what it cannot do it refuses."""

import contextlib
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ccvr
from ccvr.calibration.calibrator import Calibrator
from ccvr.core.errors import ModelError, UsageError
from ccvr.models.heads import Head, LinearHead
from ccvr.models.settings import standard_settings

CLASSES, WIDTH = 4, 64


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 128), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(128, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


MODEL = network()
Y = torch.arange(160) % CLASSES
X = torch.randn(160, 3, 8, 8, generator=torch.Generator().manual_seed(1)) + Y.view(-1, 1, 1, 1) / 4
BATCHES = [(X[:60], Y[:60]), (X[60:], Y[60:])]
BLOBS = [ccvr.collect(MODEL, [batch], num_classes=CLASSES).to_bytes() for batch in BATCHES]
TOTAL = ccvr.merge(BLOBS)
FIRST = TOTAL.as_kind("diagonal")
PROJECTION = ccvr.random_features(FIRST, num_features=50)
KERNEL = ccvr.collect(MODEL, BATCHES, num_classes=CLASSES, kind="kernel", projection=PROJECTION)
FEATURES = torch.randn(100, WIDTH, generator=torch.Generator().manual_seed(2), requires_grad=True)
COUNTS = {name: ccvr.ClassCounts(torch.tensor([n, 5, 5, 5]), torch.tensor([9] * 4)) for name, n in (("a", 2), ("b", 9))}


@torch.compiler.disable  # the models themselves may be compiled
def of_model(model: nn.Module) -> list[Tensor]:
    with standard_settings():
        return [*model.state_dict().values(), model(X[:5])]


def of_statistics(found: ccvr.ClassStatistics) -> list[Tensor]:
    return [found.count, found.total, found.second, found.clients, found.withheld]


def projected(found: ccvr.Projection) -> list[object]:
    return [found.mean, found.std, found.num_features, found.bandwidth, found.seed]


def of_counts(found: ccvr.ClassCounts) -> list[object]:
    return [found.correct, found.total, found.loss]


DOORS: dict[str, Callable[[], list[object]]] = {
    "collect": lambda: of_statistics(ccvr.collect(MODEL, BATCHES, num_classes=CLASSES, taps=["4"])),
    "collect-kernel": lambda: of_statistics(
        ccvr.collect(MODEL, BATCHES, num_classes=CLASSES, kind="kernel", projection=PROJECTION)
    ),
    "statistics_of": lambda: of_statistics(ccvr.statistics_of(FEATURES, Y[:100])),
    "merge": lambda: of_statistics(ccvr.merge(BLOBS)),
    "random_features": lambda: projected(ccvr.random_features(FIRST, num_features=50)),
    "ccvr-converged": lambda: of_model(ccvr.calibrate(MODEL, TOTAL, "ccvr-converged,num_virtual=50,iterations=5")),
    "ccvr": lambda: of_model(ccvr.calibrate(MODEL, TOTAL, "ccvr,num_virtual=50,epochs=2")),
    "lda": lambda: of_model(ccvr.calibrate(MODEL, TOTAL, "lda")),
    "ridge": lambda: of_model(ccvr.calibrate(MODEL, TOTAL, "ridge")),
    "cof": lambda: of_model(ccvr.calibrate(MODEL, TOTAL, "cof")),
    "ncm": lambda: of_model(ccvr.calibrate(MODEL, TOTAL, "ncm")),
    "kernel": lambda: of_model(ccvr.calibrate(MODEL, KERNEL)),
    "forecast": lambda: [str(ccvr.forecast(MODEL, TOTAL, "lda", num_draws=50))],
    "select": lambda: [str(ccvr.select({"a": 1, "b": 2}, [COUNTS], original="a"))],
    "personalise": lambda: of_model(ccvr.personalise(MODEL, [3, 1, 0, 2])),
    "score": lambda: of_counts(ccvr.score(MODEL, BATCHES, CLASSES)),
}


def digest(found: list[object]) -> str:
    whole = hashlib.sha256()
    for each in found:
        assert not isinstance(each, Tensor) or not (each.is_inference() or each.is_meta)
        plain = each.detach().numpy() if isinstance(each, Tensor) else None
        whole.update(
            repr(each).encode() if plain is None else f"{plain.dtype} {plain.shape}".encode() + plain.tobytes()
        )
    return whole.hexdigest()


EXPECTED = {name: digest(door()) for name, door in DOORS.items()}


@contextlib.contextmanager
def setting(name: str, value: object) -> Iterator[None]:
    """A setting of the process; it must still be there after the call."""
    getter, setter = getattr(torch, f"get_{name}"), getattr(torch, f"set_{name}")
    before = getter()
    setter(value)
    try:
        yield
        assert getter() == (torch.device(value) if isinstance(value, str) and "device" in name else value)
    finally:
        setter(before)


@contextlib.contextmanager
def newer_precision() -> Iterator[None]:
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has only the older setting")
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.backends.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = before


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def states() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), repr(np.random.get_state()), random.getstate()  # noqa: NPY002


@contextlib.contextmanager
def other_generators() -> Iterator[None]:
    """Other default generators, of which nothing may be drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        np.random.seed(99)  # noqa: NPY002 - the one that nothing may draw from
        random.seed(99)
        before = states()
        yield
        assert states() == before


@contextlib.contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    with torch.autocast("cpu", dtype):
        yield
        assert torch.is_autocast_enabled("cpu")


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "autocast-bfloat16": lambda: autocast(torch.bfloat16),
    "autocast-float16": lambda: autocast(torch.float16),
    "dtype-float64": lambda: setting("default_dtype", torch.float64),
    "dtype-bfloat16": lambda: setting("default_dtype", torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "default-device": lambda: setting("default_device", "meta"),
    "inference-mode": torch.inference_mode,
    "no-grad": torch.no_grad,
    "enable-grad": torch.enable_grad,
    "precision": lambda: setting("float32_matmul_precision", "medium"),
    "newer-precision": newer_precision,
    "deterministic": deterministic,
    "generators": other_generators,
    "numpy-raises": lambda: np.errstate(all="raise"),
}


@pytest.mark.parametrize("around", SETTINGS)
@pytest.mark.parametrize("name", DOORS)
def test_what_is_set_around_a_call_changes_no_bit(name: str, around: str) -> None:
    with SETTINGS[around]():
        found = DOORS[name]()
    with standard_settings():
        assert digest(found) == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name in DOORS if hasattr(ccvr, name)] + ["lda"])
def test_a_compiled_caller_changes_no_bit(name: str) -> None:
    graphs = []

    def compiler(graph, example):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    kept: list[list[object]] = []

    def caller(x: Tensor) -> Tensor:
        y = x * 2
        kept.append(DOORS[name]())
        return y + 1

    assert torch.equal(torch.compile(caller, backend=compiler)(torch.ones(2)), torch.full((2,), 3.0))
    torch._dynamo.reset()
    assert digest(kept[-1]) == EXPECTED[name]
    ours = [
        str(target) for graph in graphs for target in graph if "mul" not in str(target) and "add" not in str(target)
    ]
    assert not ours, "only the caller's own operations are compiled"


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad], ids=["vmap", "grad"])
@pytest.mark.parametrize("name", DOORS)
def test_inside_a_transform_a_call_is_refused(name: str, transform: Callable[..., object]) -> None:
    def inside(x: Tensor) -> Tensor:
        DOORS[name]()
        return x.sum()

    with pytest.raises(UsageError) as caught:
        transform(inside)(torch.ones(3))
    assert "inside a transform of torch.func, such as vmap or grad. Call it outside" in str(caught.value)


def test_a_users_calibrator_may_learn_under_no_grad() -> None:
    with torch.no_grad():
        new = ccvr.calibrate(MODEL, TOTAL, "tests.end_to_end.test_settings:Learned")
    assert torch.equal(new[-1].bias, torch.full((CLASSES,), 2.0))


@dataclass(frozen=True, kw_only=True)
class Learned(Calibrator):
    """Takes one step on the bias, by autograd."""

    def fit(self, head: Head, statistics: ccvr.ClassStatistics, *, rng: torch.Generator) -> Head:
        bias = torch.zeros(CLASSES, requires_grad=True)
        (gradient,) = torch.autograd.grad((-2 * bias).sum(), bias)
        return LinearHead(head.weight, -gradient)


class Watch(nn.Module):
    """Writes down whether the model ran under autocast, and on which default device and type."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[object] = set()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add((torch.is_autocast_enabled("cpu"), torch.zeros(1).device.type, torch.zeros(1).dtype))
        return x


def test_the_model_runs_in_its_own_precision() -> None:
    watch = Watch()
    model = nn.Sequential(watch, MODEL)
    with torch.autocast("cpu"), torch.device("meta"), setting("default_dtype", torch.float64):
        ccvr.collect(model, BATCHES, num_classes=CLASSES)
        ccvr.score(model, BATCHES, CLASSES)
    assert watch.seen == {(False, "cpu", torch.float32)}


def test_batches_are_made_under_the_users_own_settings() -> None:
    """A loader's generator may need them."""
    seen = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in BATCHES:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_default_device().type, torch.get_default_dtype()))
            yield batch

    with torch.autocast("cpu"), torch.device("meta"), setting("default_dtype", torch.float64):
        ccvr.collect(MODEL, batches(), num_classes=CLASSES)
        ccvr.score(MODEL, batches(), CLASSES)
    assert set(seen) == {(True, "meta", torch.float64)}


def test_threads_share_the_default_type_without_leaving_another() -> None:
    """It is the process's: whichever call ends first must not take it from the others."""
    found, errors = set(), []

    def work() -> None:
        try:
            found.update(digest(DOORS["ccvr"]()) for _ in range(5))
        except BaseException as error:
            errors.append(error)

    with setting("default_dtype", torch.float64):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with standard_settings():
        assert (found, errors) == ({EXPECTED["ccvr"]}, [])


def test_the_settings_come_back_after_an_error() -> None:
    with setting("default_dtype", torch.float64), torch.autocast("cpu"), pytest.raises(ModelError):
        ccvr.calibrate("model", TOTAL)
    assert torch.get_default_dtype() == torch.float32
