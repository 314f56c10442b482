"""The table of personalisations, and how a command names one: ``name[,option=value…][,label=…]``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ccvr.algorithms.algorithm import require_above
from ccvr.calibration.personalise import SMOOTHING, prior_shift
from ccvr.core.errors import CalibrationError
from ccvr.core.fields import plain
from ccvr.core.methods import build_method, find_class, require_different, split_label
from ccvr.core.results import TRAINED
from ccvr.core.tables import Table
from ccvr.models.heads import Head, shifted_head
from ccvr.training.personalisation import Finetune, Personalisation, Start


@dataclass(frozen=True)
class Prior(Personalisation):
    """The head under the client's own label frequencies: log pi_k(c) − log pi(c) is added to scores. No training."""

    smoothing: float = SMOOTHING
    """Samples that are added to the client's own for each class."""

    def __post_init__(self) -> None:
        require_above("prior: smoothing", self.smoothing, 0)

    def require(self, head: Head, prior: Tensor | None) -> None:
        if prior is None:
            raise CalibrationError(
                "its scores are not log-probabilities under label frequencies that are known (docs/running.md). "
                "Start from a calibrated head, such as that of ccvr or lda, with --head."
            )

    def personalise(self, start: Start) -> nn.Module:
        assert start.prior is not None
        shift = prior_shift(start.label_counts, start.prior, self.smoothing)
        return start.model.with_head(shifted_head(start.model.head, shift))


PERSONALISATIONS: Table[type[Personalisation]] = Table("personalisation", {"finetune": Finetune, "prior": Prior})


@dataclass(frozen=True)
class Labelled:
    """A personalisation by its name and with its options, and the label of its models in results.json."""

    name: str
    label: str
    method: Personalisation

    @property
    def options(self) -> dict[str, Any]:
        """As JSON has them, without those that are None."""
        return dict(plain(self.method))


def parse_personalisations(texts: Sequence[str]) -> list[Labelled]:
    """The methods that texts name, each with a label of its own.

    Example:
    >>> parse_personalisations(["finetune,epochs=1"])
    [Labelled(name='finetune', label='finetune', method=Finetune(epochs=1, lr=None, scope='all'))]
    """
    found = [_parsed(text) for text in texts]
    require_different([each.label for each in found], "personalisations")
    return found


def _parsed(text: str) -> Labelled:
    name = text.partition(",")[0]
    cls = find_class(PERSONALISATIONS, Personalisation, name)
    label, options = split_label(text, cls, "personalisation", (TRAINED,))
    return Labelled(name, label, build_method(cls, options, name))
