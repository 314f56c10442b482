"""SGD with momentum, by torch's fused kernel and without what torch's optimiser does around it in every step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ccvr.algorithms.spec import TrainingSpec


class Sgd:
    """v ← momentum v + (g + weight_decay w), w ← w − lr v: the bits of torch.optim.SGD."""

    def __init__(self, parameters: Sequence[nn.Parameter], spec: TrainingSpec) -> None:
        self._pairs = [(parameter, torch.zeros_like(parameter)) for parameter in parameters if parameter.requires_grad]
        self._spec = spec
        self._fused = all(_suits_the_kernel(parameter) for parameter in parameters)

    def drop_gradients(self) -> None:
        for parameter, _ in self._pairs:
            parameter.grad = None

    def step(self) -> None:
        """Parameters that took no part in the loss stay as they are."""
        live = [
            (parameter, _laid_out_as(parameter, parameter.grad), velocity)
            for parameter, velocity in self._pairs
            if parameter.grad is not None
        ]
        if not live:
            return
        with torch.no_grad():
            parameters, gradients, velocities = (list(column) for column in zip(*live, strict=True))
            sgd(
                parameters,
                gradients,
                velocities,
                fused=self._fused,
                foreach=False,
                weight_decay=self._spec.weight_decay,
                momentum=self._spec.momentum,
                lr=self._spec.lr,
                dampening=0,
                nesterov=False,
                maximize=False,
            )


def step_weight(num_steps: int, spec: TrainingSpec, pull: float = 0.0) -> float:
    """A of w_start − w = lr · A · g after so many steps, g a mean of their gradients.

    Momentum adds a gradient again in every later step: A = (τ − β (1 − β^τ) / (1 − β)) / (1 − β), without momentum τ.
    A ``pull`` towards the start, which is the weight of a proximal term, takes part of each change back: without
    momentum A = (1 − (1 − lr · pull)^τ) / (lr · pull) (Wang et al. 2020).
    """
    velocity = total = 0.0
    for _ in range(num_steps):
        velocity = spec.momentum * velocity + 1 - spec.lr * pull * total
        total += velocity
    return total


def _suits_the_kernel(tensor: Tensor) -> bool:
    """The fused kernel reads memory without strides, and is wrong for half precision."""
    dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    return dense and tensor.dtype in (torch.float32, torch.float64)


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's order of memory, which the kernel needs; an objective may use another order."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter.detach()).copy_(gradient.detach())
