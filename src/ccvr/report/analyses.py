"""What analyses leave in a run: which arrays of which shapes, and what they are about. Reports read nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np

from ccvr.core.arrays import Array
from ccvr.core.schema import Count, Real, mistyped

Analysis = tuple[dict[str, Array], dict[str, Any]]
"""Arrays by name, and what they are about."""
MAX_NUMBERS = 16
"""Numbers of features whose means are inverted."""
LARGEST = 1e100


class Heads(TypedDict):
    heads: list[str]


class Cka(TypedDict):
    layers: list[str]
    clients: list[Count]
    run: NotRequired[str]


class Separability(TypedDict):
    mean: Real
    gains: dict[str, Real]


class Plane(TypedDict):
    after: str


Inversion = TypedDict("Inversion", {"numbers": list[Count], "client": Count, "class": Count})

ABOUT: Mapping[str, Any] = {
    "confusion": Heads,
    "norms": Heads,
    "cka": Cka,
    "cka-against": Cka,
    "separability": Separability,
    "tsne": Plane,
    "inversion": Inversion,
}
SHAPES: Mapping[str, Mapping[str, str]] = {
    "confusion": {"confusion": "count H C C"},
    "norms": {"norms": "real H C", "rounds?": "count R", "lean?": "real R", "spread?": "real R"},
    "cka": {"cka": "real L K K"},
    "cka-against": {"cka": "real L K K"},
    "separability": {"distances": "real P P", "classes": "label P"},
    "tsne": {
        "points": "finite N 2",
        "truth": "label N",
        "before": "label N",
        "after": "label N",
        "samples?": "count N",
    },
}
"""Of each array its kind and its sides; sides of one name are equally long, and C is the number of classes. A ? marks
arrays that may be absent."""
OF_A_NUMBER = {
    "originals": "finite S_{n} D W_{n} V_{n}",
    "reconstructions": "finite S_{n} D W_{n} V_{n}",
    "similarity": "real T_{n}",
    "chance": "real U_{n}",
    "error?": "real E_{n}",
}


def misfit(name: str, found: Analysis, num_classes: int) -> str | None:
    """Why an analysis cannot be shown, as a fact in words; None where it can."""
    arrays, about = found
    fact = mistyped({key: value for key, value in about.items() if key in ABOUT[name].__annotations__}, ABOUT[name])
    if fact or (fact := _impossible(about, num_classes)):
        return fact
    counted = {"H": "heads", "L": "layers", "K": "clients"}
    sides = {"C": num_classes} | {side: len(about[key]) for side, key in counted.items() if key in about}
    wanted = SHAPES.get(name) or _of_numbers(about["numbers"])
    facts = (_ill_shaped(arrays, key, kind, sides) for key, kind in wanted.items())
    return next(filter(None, facts), None)


def _impossible(about: Mapping[str, Any], num_classes: int) -> str | None:
    if "layers" in about and not _are_numbers(about.get("mean"), len(about["layers"])):
        return "mean is not a number for each of its layers"
    if "numbers" in about and not 0 < len(set(about["numbers"])) == len(about["numbers"]) <= MAX_NUMBERS:
        return f"numbers are not 1 to {MAX_NUMBERS} different ones"
    if about.get("class", 0) >= num_classes:
        return f"class is {about['class']}, and there are {num_classes} classes"
    return None


def _are_numbers(values: object, expected: int) -> bool:
    """Whether there are so many numbers; NaN is what is not known."""
    return (
        isinstance(values, list)
        and 0 < len(values) == expected
        and all(type(each) in (int, float) and not abs(each) > LARGEST for each in values)
    )


def _of_numbers(numbers: Sequence[int]) -> dict[str, str]:
    return {
        f"{key.removesuffix('?')}_{n}{'?' * key.endswith('?')}": kind.format(n=n)
        for n in numbers
        for key, kind in OF_A_NUMBER.items()
    }


def _ill_shaped(arrays: Mapping[str, Array], key: str, wanted: str, sides: dict[str, int]) -> str | None:
    """Why an array is not as it should be; ``sides`` learns the lengths of the names that it did not know."""
    name, (kind, *names) = key.removesuffix("?"), wanted.split()
    if name not in arrays:
        return None if key.endswith("?") else f'there is no array "{name}"'
    array = arrays[name]
    lengths = [int(each) if each.isdigit() else sides.setdefault(each, length) for each, length in
               zip(names, array.shape, strict=False)]  # fmt: skip
    if array.ndim != len(names) or list(array.shape) != lengths or not (array.size or key.endswith("?")):
        return f"{name} is {array.dtype} {list(array.shape)}, not {' × '.join(names)}"
    if array.dtype.kind not in ("iu" if kind in ("label", "count") else "iuf"):
        return f"{name} is {array.dtype} {list(array.shape)}, not numbers of the kind {kind}"
    if kind in ("label", "count"):
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        most = sides["C"] - 1 if kind == "label" else 2**40
        return None if low >= 0 and high <= most else f"{name} has values from {low} to {high}, not from 0 to {most}"
    known = array if kind == "finite" else array[~np.isnan(array)]
    is_fine = bool((np.abs(known.astype(np.float64)) <= LARGEST).all())
    return None if is_fine else f"{name} has values that are not finite, or too large"
