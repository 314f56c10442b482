"""What the paper claims, as comparisons of numbers, and whether they hold on its numbers and on ours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from ccvr.report.published import ALPHAS, published
from ccvr.report.text_table import DASH, TextTable
from ccvr.reproduction.cells import CELLS, SCALES, Scale
from ccvr.reproduction.comparison import ALGORITHMS, EXACT, Numbers, method_of
from ccvr.reproduction.heads import BEFORE, CCVR, ORACLE, HeadName
from ccvr.reproduction.run_index import RunIndex

REGULARISERS = ("clsnorm", "clsprox", "clsnorm-clsprox")
HOLDS, FAILS = "holds", "does not hold"


@dataclass(frozen=True)
class Quantity:
    """A number of a cell: the accuracy of a head in percent, or what it gained in points."""

    cell: str
    head: HeadName
    kind: Literal["accuracy", "gain"]

    @property
    def method(self) -> str:
        return method_of(CELLS[self.cell], self.head)

    @property
    def alpha(self) -> str:
        return f"α = {CELLS[self.cell].spec.partition.alpha:g}"

    def published(self) -> float:
        found = ({**published("table1"), **published("table2")})[self.cell, self.head]
        value = found.mean if self.kind == "accuracy" else found.gain
        assert value is not None, f"the paper prints no {self.kind} of {self.cell}"
        return value

    def ours(self, numbers: Numbers, scale: Scale) -> dict[int, float]:
        """By seed."""
        read = numbers.accuracies if self.kind == "accuracy" else numbers.gains
        return read(CELLS[self.cell], self.head, scale)


@dataclass(frozen=True)
class Comparison:
    """One quantity that is larger than another, or than zero."""

    larger: Quantity
    smaller: Quantity | None
    or_equal: bool = False

    @property
    def name(self) -> str:
        """What both have in common is said once."""
        larger, smaller = self.larger, self.smaller
        if smaller is None:
            return f"{larger.method}, {larger.alpha} {self.sign} 0"
        if smaller.method == larger.method:
            return f"{larger.method}, {larger.alpha} {self.sign} {smaller.alpha}"
        return f"{larger.method} {self.sign} {smaller.method}, {larger.alpha}"

    @property
    def sign(self) -> str:
        return "≥" if self.or_equal else ">"

    def published(self) -> "Verdict":
        return self._outcome(self.larger.published(), self.smaller.published() if self.smaller else 0.0, 3)

    def ours(self, numbers: Numbers, scale: Scale) -> "Verdict | None":
        """Means over the seeds that both have; None where there is none."""
        larger = self.larger.ours(numbers, scale)
        smaller = self.smaller.ours(numbers, scale) if self.smaller else dict.fromkeys(larger, 0.0)
        common = larger.keys() & smaller.keys()
        if not common:
            return None
        return self._outcome(mean(larger[s] for s in common), mean(smaller[s] for s in common), len(common))

    def _outcome(self, larger: float, smaller: float, seeds: int) -> "Verdict":
        ahead = round(larger - smaller, EXACT)
        holds = ahead >= 0 if self.or_equal else ahead > 0
        sign = "+" if self.larger.kind == "gain" else ""
        right = f"{smaller:{sign}.2f}" if self.smaller else "0"
        return Verdict(f"{larger:{sign}.2f} : {right}", holds, seeds)


@dataclass(frozen=True)
class Verdict:
    """Both figures, and whether they stand as claimed."""

    figures: str
    holds: bool
    seeds: int

    @property
    def verdict(self) -> str:
        return HOLDS if self.holds else FAILS


@dataclass(frozen=True)
class Claim:
    """It holds if all its comparisons do."""

    text: str
    comparisons: tuple[Comparison, ...]


def _gain(cell: str, head: HeadName = CCVR) -> Quantity:
    return Quantity(cell, head, "gain")


def _accuracy(cell: str, head: HeadName) -> Quantity:
    return Quantity(cell, head, "accuracy")


CELLS_OF_CLAIMS = [f"cifar10-a{alpha}-{algorithm}" for algorithm in ALGORITHMS for alpha in ALPHAS]


def _regularised(head: HeadName) -> Iterator[Comparison]:
    for alpha in ALPHAS:
        cell = f"cifar10-a{alpha}-fedavg"
        for name in REGULARISERS:
            yield Comparison(_gain(cell, head), _gain(f"{cell}-{name}", BEFORE))


def _more_heterogeneous(alpha: str) -> tuple[Comparison, ...]:
    pairs = ((f"cifar10-a{alpha}-{name}", f"cifar10-a0.5-{name}") for name in ALGORITHMS)
    return tuple(Comparison(_gain(uneven), _gain(even)) for uneven, even in pairs)


CLAIMS = (
    Claim("CCVR improves every algorithm at every alpha", tuple(Comparison(_gain(c), None) for c in CELLS_OF_CLAIMS)),
    Claim("CCVR gains more at alpha 0.1 than at 0.5", _more_heterogeneous("0.1")),
    Claim("CCVR gains more at alpha 0.05 than at 0.5", _more_heterogeneous("0.05")),
    Claim(
        "The oracle (whole data) is at least as good as CCVR",
        tuple(Comparison(_accuracy(c, ORACLE), _accuracy(c, CCVR), or_equal=True) for c in CELLS_OF_CLAIMS),
    ),
    Claim("Regularising gains less than calibrating with whole data", tuple(_regularised(ORACLE))),
    Claim("Regularising gains less than CCVR", tuple(_regularised(CCVR))),
)


def _scales(trainings: RunIndex) -> list[Scale]:
    """Scales at which anything that the claims are about was trained, the largest first."""
    sides = {side for claim in CLAIMS for each in claim.comparisons for side in (each.larger, each.smaller) if side}
    found = {scale for side in sides for scale in trainings.scales(CELLS[side.cell])}
    return sorted(found, key=lambda scale: (-scale.size, scale))


def judge(trainings: RunIndex, scale: Scale | None) -> tuple[TextTable, TextTable]:
    """All claims at every scale: the verdicts, and the figures that they rest on."""
    numbers, verdicts, figures = Numbers(trainings), [], []
    scales = [scale] if scale else _scales(trainings) or [SCALES["paper"]]
    for number, claim in enumerate(CLAIMS, start=1):
        theirs = [comparison.published() for comparison in claim.comparisons]
        for each in scales:
            ours = [comparison.ours(numbers, each) for comparison in claim.comparisons]
            verdicts.append([f"{number}. {claim.text}", each.name, *_verdict(ours), _verdict(theirs)[-1]])
            for comparison, mine, paper in zip(claim.comparisons, ours, theirs, strict=True):
                row = [str(mine.seeds), mine.figures, mine.verdict] if mine else [DASH, DASH, "not trained"]
                figures.append([f"claim {number}", comparison.name, each.name, *row, paper.figures, paper.verdict])
    trained = ", ".join(each.label for each in scales)
    top = ("claim", "scale", "seeds", "comparisons that hold", "ours", "paper")
    below = ("claim", "comparison", "scale", "seeds", "our figures", "ours", "the paper's figures", "paper")
    words = [header for header in below if header not in ("seeds", "our figures", "the paper's figures")]
    return (
        TextTable(
            f"The paper's claims on CIFAR-10, on our numbers ({trained}) and on its own",
            top,
            verdicts,
            top,
            name="claims",
        ),
        TextTable(
            "Figures behind the verdicts: accuracy in percent, gains in points",
            below,
            figures,
            words,
            name="comparisons",
        ),
    )


def _verdict(outcomes: Sequence[Verdict | None]) -> list[str]:
    """Seeds, how many comparisons hold, and whether the claim does."""
    known = [outcome for outcome in outcomes if outcome]
    good = sum(outcome.holds for outcome in known)
    if not known:
        return [DASH, DASH, "not trained"]
    counts = sorted({outcome.seeds for outcome in known})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    verdict = HOLDS if good == len(known) else FAILS
    missing = len(outcomes) - len(known)
    rest = f", as far as trained ({missing} of {len(outcomes)} missing)" if missing and verdict == HOLDS else ""
    return [seeds, f"{good} of {len(known)}", verdict + rest]
