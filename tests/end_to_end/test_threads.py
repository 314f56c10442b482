"""Several threads at the library's functions, on one model, on several, and on several with modules in common."""

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import ccvr
from ccvr.core.errors import DataError
from ccvr.models.modes import alone_with, buffers_kept, evaluating
from ccvr.statistics.collect import read_features

CLASSES = 4


class Counting(nn.Module):
    """Changes a buffer in every pass, in eval mode, too, and what comes out depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x + self.passes


def backbone() -> nn.Module:
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), Counting(), nn.BatchNorm1d(16).eval()]
    return nn.Sequential(*layers, nn.Linear(16, 8), nn.ReLU())


def networks(number: int) -> list[nn.Module]:
    """Models in train mode of which a part is frozen; the last two have one backbone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bodies = [backbone() for _ in range(max(1, number - 1))]
        return [nn.Sequential(body, nn.Linear(8, CLASSES)) for body in (bodies + bodies[-1:])[:number]]


Y = torch.arange(120) % CLASSES
X = torch.randn(120, 6, generator=torch.Generator().manual_seed(1)) + Y.unsqueeze(1)
BATCHES = list(zip(X.split(20), Y.split(20), strict=True))


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def collected(model: nn.Module) -> str:
    found = ccvr.collect(model, BATCHES, num_classes=CLASSES, taps="auto")
    return digest([found.count, found.total, found.second])


def calibrated(model: nn.Module) -> str:
    total = ccvr.collect(model, BATCHES, num_classes=CLASSES)
    new = ccvr.calibrate(model, total, "lda")
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in new.modules()].count(0)
    return digest([*new.state_dict().values(), torch.tensor([module.training for module in new.modules()])])


def scored(model: nn.Module) -> str:
    found = ccvr.score(model, BATCHES, CLASSES)
    return digest([found.correct, found.total, torch.tensor(found.loss)])


def forecast(model: nn.Module) -> str:
    total = ccvr.collect(model, BATCHES, num_classes=CLASSES)
    return str(ccvr.forecast(model, total, "lda", num_draws=20))


def personalised(model: nn.Module) -> str:
    return digest(list(ccvr.personalise(model, [3, 1, 0, 2], head="1").state_dict().values()))


def failed(model: nn.Module) -> str:
    with pytest.raises(DataError):
        ccvr.collect(model, [*BATCHES[:3], "no batch"], num_classes=CLASSES)
    return "failed"


def abandoned(model: nn.Module) -> str:
    """Half of the features; the generator is left to the garbage collector, in whatever thread."""
    features = read_features(model, BATCHES, "1")
    with buffers_kept(model):
        kept = [next(features)[0] for _ in range(3)]
    LEFT.append(features)
    return digest(kept)


def nested(model: nn.Module) -> str:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in BATCHES[:2]:
            ccvr.score(model, [batch], CLASSES)
            yield batch

    return digest([ccvr.collect(model, batches(), num_classes=CLASSES).total])


LEFT: list[object] = []
CALLS = (collected, calibrated, scored, forecast, personalised, failed, abandoned, nested)


def everything(model: nn.Module) -> tuple[object, ...]:
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    return modes, hooks, digest(list(model.state_dict().values()))


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(number: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(k,), daemon=True) for k in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    assert errors == []


@pytest.mark.parametrize("number", [1, 3])
def test_threads_find_what_one_thread_finds(number: int, hasty: None) -> None:
    models = networks(number)
    before = [everything(model) for model in models]
    expected = {(call.__name__, k): call(model) for call in CALLS for k, model in enumerate(models)}
    assert [everything(model) for model in models] == before
    found: list[tuple[tuple[str, int], str]] = []

    def work(thread: int) -> None:
        for step in range(3 * len(CALLS)):
            call, k = CALLS[(step + 3 * thread) % len(CALLS)], (step + thread) % number
            found.append(((call.__name__, k), call(models[k])))
            LEFT.clear()

    in_threads(6, work)
    assert len(found) == 6 * 3 * len(CALLS)
    assert [key for key, what in found if expected[key] != what] == []
    assert [everything(model) for model in models] == before


def test_models_without_modules_in_common_do_not_wait() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with alone_with(one):
        in_threads(1, lambda k: evaluating(other).__enter__())


def test_a_block_inside_a_block_does_not_wait() -> None:
    model = networks(1)[0]
    with alone_with(model), evaluating(model[0]), buffers_kept(model):
        assert not model[0].training
    assert model[0].training


def test_buffers_that_are_replaced_come_back() -> None:
    """Caches grow: another tensor, of another shape, under the same name."""
    model = Counting()
    before = model.passes
    with buffers_kept(model):
        model.passes += 1
        model.passes = torch.zeros(5)
    assert model.passes is before
    assert model.passes.item() == 0
