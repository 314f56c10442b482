"""Names of code in files are found wherever they stand, and refused before they are imported."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccvr.core.errors import UntrustedCode
from ccvr.core.tables import CODE_NAME
from ccvr.core.trust import code_names, require_trust, typed_names

NAMES = st.from_regex(CODE_NAME, fullmatch=True)
AROUND = st.text(alphabet=",=+; '\"[]()", max_size=3)


def nested(name: str) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.just(name),
        lambda inner: (
            st.lists(inner, min_size=1, max_size=2)
            | st.dictionaries(st.sampled_from(["name", "kind", "methods"]), inner, min_size=1, max_size=2)
        ),
        max_leaves=4,
    )


@given(NAMES, AROUND, AROUND, st.data())
def test_a_name_is_found_wherever_it_stands(name: str, before: str, after: str, data: st.DataObject) -> None:
    content = data.draw(nested(f"{before}{name}{after}"))
    assert name in {found for _, found in code_names(content)}
    with pytest.raises(UntrustedCode):
        require_trust(content, "file", False)
    with pytest.raises(UntrustedCode):
        require_trust(content, "file", frozenset({f"{name}_"}))
    require_trust(content, "file", True)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"data": {"name": "mine:digits"}}, [("data.name", "mine:digits")]),
        ({"calibration": {"methods": ["ncm", "lda,kind=a.b:c.d"]}}, [("calibration.methods", "a.b:c.d")]),
        ({"calibration": {"methods": [{"name": "m:N"}]}}, [("calibration.methods.name", "m:N")]),
        ({"training": {"algorithm": "fedavg+mine:Server,x=1"}}, [("training.algorithm", "mine:Server")]),
        ({"data": {"name": "folder:images", "unlabelled": "folder:/other:images"}}, []),
        ({"data": {"root": "C:images"}, "flower": {"superlink": "local:grpc"}}, []),
        ({"partition": {"kind": "folder:images"}}, [("partition.kind", "folder:images")]),
        ({"calibration": {"methods": ["ccvr,transform=tukey:0.5", "lda,shrinkage=fixed:0.1"]}}, []),
        ({"seed": 3, "model": {"head": "layers.2"}, "started": "2026-01-01T10:00:00"}, []),
    ],
)
def test_what_is_a_name_of_code(content: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert list(code_names(content)) == found


def test_the_error_is_one_line_with_file_field_module_and_remedy() -> None:
    with pytest.raises(UntrustedCode) as caught:
        require_trust({"data": {"name": "shutil:rmtree"}, "seed": 1}, "run/spec.toml", False)
    assert str(caught.value) == (
        'run/spec.toml names code that is not part of ccvr: data.name is "shutil:rmtree", which would import and run '
        "shutil. Add --trust (in Python trust=True) if you trust the author of the file."
    )


def test_what_was_typed_may_be_imported_and_nothing_else() -> None:
    typed = typed_names("calibrate", "runs/here", "--method", "mine:Cosine,scale=2", "lda,kind=mine:noisy")
    assert typed == {"mine:Cosine", "mine:noisy"}
    require_trust({"a": "mine:Cosine", "b": ["mine:noisy"]}, "file", typed)
    with pytest.raises(UntrustedCode, match='"mine:Cosines"'):
        require_trust({"a": "mine:Cosine", "b": "mine:Cosines"}, "file", typed)


def test_depth_is_no_way_around() -> None:
    content: Any = "evil:run"
    for _ in range(100_000):
        content = [content]
    with pytest.raises(UntrustedCode):
        require_trust(content, "file", False)


def test_a_name_in_a_key_is_found():
    content = {"methods": [{"name": "lda", "kind=evil:x,label": "q"}]}
    with pytest.raises(UntrustedCode, match="evil:x"):
        require_trust(content, "spec.toml", False)
