"""A request says what all clients are asked for, and comes out of its bytes as it went in."""

import pytest
import torch

from ccvr.core.errors import StatisticsError
from ccvr.models.random_features import Projection
from ccvr.models.tensor_file import tensors_to_bytes
from ccvr.statistics.request import FORMAT, Request

PROJECTION = Projection(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), 5, 0.5, 7)
REQUESTS = {
    "plain": Request(),
    "all of it": Request("pooled", "tukey:0.5", "conv1+fc1", 8),
    "random features": Request("kernel", taps="auto", projection=PROJECTION),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_bytes_and_back(request_):
    request_.validate()
    assert Request.from_bytes(request_.to_bytes()) == request_


def test_taps_in_a_list_are_taps_in_a_line():
    assert Request.from_bytes(Request(taps=("a", "b.c")).to_bytes()).taps == "a+b.c"


@pytest.mark.parametrize(
    "change",
    [{"kind": 3}, {"transform": None}, {"taps": ["a"]}, {"min_count": "8"}, {"min_count": True}, {"min_count": 8.0}],
)
def test_what_is_no_request_is_refused(change):
    header = {"kind": "full", "transform": "none", "taps": "", "min_count": 0, **change}
    blob = tensors_to_bytes({"projection": torch.zeros(0, dtype=torch.uint8)}, format=FORMAT, **header)
    with pytest.raises(StatisticsError, match="these bytes are not a request for statistics"):
        Request.from_bytes(blob)


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_bytes_that_were_cut_are_refused(cut):
    for request in REQUESTS.values():
        with pytest.raises(StatisticsError):
            Request.from_bytes(request.to_bytes()[:cut])


def test_a_projection_that_makes_other_features_here_is_refused():
    blob = Request("kernel", projection=PROJECTION).to_bytes()
    digest = PROJECTION.digest.encode()
    with pytest.raises(StatisticsError, match="other random features here"):
        Request.from_bytes(blob.replace(digest, digest[::-1]))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("ful"), 'no kind of statistics "ful". Did you mean "full"?'),
        (Request("kernel"), 'kind "kernel" and a projection belong together.'),
        (Request("full", projection=PROJECTION), 'kind "kernel" and a projection belong together.'),
        (Request("kernel", "tukey", projection=PROJECTION), 'kind "kernel" takes no transform, but "tukey" was given.'),
    ],
)
def test_what_does_not_go_together(request_, message):
    with pytest.raises(StatisticsError) as refused:
        request_.validate()
    assert str(refused.value).startswith(message)
