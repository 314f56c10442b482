"""A model under one client's own label frequencies."""

import copy
import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor, nn

from ccvr.core.arrays import IntArray
from ccvr.core.errors import CalibrationError, ModelError
from ccvr.models.find import find_head_by_width
from ccvr.models.heads import Head, LinearHead, shifted_head
from ccvr.models.passes import require_model
from ccvr.models.settings import settled
from ccvr.models.split import SplitModel, under_new_head

UNIFORM = "uniform"
SMOOTHING = 1.0

Numbers = Tensor | IntArray | Sequence[float]


@settled
def personalise(
    model: nn.Module, counts: Numbers, *, prior: str | Numbers = UNIFORM, smoothing: float = SMOOTHING, head: str = ""
) -> nn.Module:
    """A copy of a classifier whose scores fit a client's own label frequencies; ``model`` is left as it is.

    log pi_k(c) − log pi(c) is added to the score of class c: Bayes' rule for a client k whose classes look like
    everybody's and are only more or less frequent. pi is the ``prior`` and pi_k the client's label frequencies, with
    ``smoothing``: pi_k(c) = (n_c + smoothing C pi(c)) / (n + smoothing C), which for a uniform prior is
    (n_c + smoothing) / (n + smoothing C). The scores must be log-probabilities up to a constant, as those of a head
    that was trained by cross-entropy and of ccvr and lda are; those of ridge, kernel and cof are not.

    Args:
        model: any model with a linear head, calibrated or not.
        counts: how many training samples of each class the client has, [C].
        prior: the label frequencies that the head was fitted under: "uniform", as calibrated heads are unless
            priors=counts, or numbers proportional to them [C]; for a trained head, all clients' counts together.
        smoothing: samples added to the client's for each class; above 0, so that no class is ruled out.
        head: path of the head. Without it the only linear layer that scores C classes.

    Raises:
        CalibrationError: numbers that no samples have.
        ModelError: what is given is no model, or the head cannot be found.

    Example:
    >>> model = nn.Linear(2, 3)
    >>> own = personalise(model, [98, 0, 1])
    >>> (own.bias - model.bias).exp().mul(102 / 3).round().tolist()  # (98 + 1, 0 + 1, 1 + 1) of 99 + 3, over 1/3
    [99.0, 1.0, 2.0]
    """
    shift = prior_shift(counts, prior, smoothing)
    path = _path_of(model, len(shift), head)
    return under_new_head(model, path, shifted_head(_head_at(model, path), shift))


def prior_shift(counts: Numbers, prior: str | Numbers, smoothing: float) -> Tensor:
    """What is added to scores, log pi_k(c) − log pi(c), [C], in float64. Counts proportional to the prior add 0."""
    n = _numbers("counts", counts)
    fractional = (n != n.round()).nonzero().flatten().tolist()
    if fractional:
        c = fractional[0]
        raise CalibrationError(f"counts[{c}] is {n[c].item():g}; give whole numbers of samples, not frequencies.")
    pi = torch.ones_like(n) if isinstance(prior, str) and prior == UNIFORM else _numbers("prior", prior)
    if len(pi) != len(n):
        raise CalibrationError(f"prior has {len(pi)} classes and counts has {len(n)}. Give both for the same classes.")
    pi, added = pi / pi.sum(), _positive("smoothing", smoothing) * len(n)
    share = torch.where(n > 0, n / pi, 0.0)  # 0 also for a class that nobody has
    shift = ((share + added) / (n.sum() + added)).log()
    endless = (~shift.isfinite()).nonzero().flatten().tolist()
    if endless:
        c = endless[0]
        raise CalibrationError(f"counts[{c}] is {n[c].item():g} and the prior of that class is {pi[c].item():g}.")
    return shift


def _positive(name: str, value: object) -> float:
    """A finite number above 0."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # a whole number that is larger than any float
        number = math.inf
    if not 0 < number < math.inf:
        raise CalibrationError(f"{name} is {value!r}; give a finite number above 0.")
    return number


def _numbers(name: str, values: object) -> Tensor:
    """Numbers of classes as float64 on the CPU, [C]; what cannot be counts or frequencies is an error."""
    try:
        given = torch.as_tensor(values)
        numbers = (given if given.is_complex() else torch.as_tensor(values, dtype=torch.float64)).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise CalibrationError(f"{name} is not a list of one number per class ({reason}).") from error
    if numbers.is_complex():
        raise CalibrationError(f"{name} is complex; give one real number per class.")
    if numbers.dim() != 1 or not len(numbers):
        raise CalibrationError(f"{name} has the shape {list(numbers.shape)}; give one number per class, [C].")
    wrong = (~(numbers.isfinite() & (numbers >= 0))).nonzero().flatten().tolist()
    if wrong:
        raise CalibrationError(f"{name}[{wrong[0]}] is {numbers[wrong[0]].item():g}; give finite numbers from 0 on.")
    if not 0 < numbers.sum() < math.inf:
        raise CalibrationError(f"the sum of {name} is {numbers.sum().item():g}; give at least one sample of a class.")
    return numbers


def _path_of(model: nn.Module, num_classes: int, path: str) -> str:
    """Where the head is; a split model knows."""
    require_model(model)
    if not isinstance(model, SplitModel):
        return find_head_by_width(model, num_classes, path)
    if path not in ("", "head"):
        raise ModelError(f'the head of this model is "head", not "{path}".')
    return find_head_by_width(model, num_classes, "head")


def _head_at(model: nn.Module, path: str) -> Head:
    """The head as one of ours."""
    module = model.get_submodule(path)
    if isinstance(module, nn.Linear):
        return LinearHead(module.weight, module.bias)
    assert isinstance(module, Head)
    return copy.deepcopy(module)
