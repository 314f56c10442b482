"""Closed forms against textbooks: the same heads from raw features, in NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge as LeastSquares
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import StandardScaler

from ccvr.calibration.calibrator import Calibrator
from ccvr.calibration.closed_forms import Cof, CofMeans, Kernel, Lda, Ncm, Ridge, solve
from ccvr.core.errors import CalibrationError
from ccvr.models.heads import LinearHead
from ccvr.models.random_features import RandomFeatures
from ccvr.models.transform import FeatureTransform
from ccvr.statistics.collect import random_features, statistics_of
from ccvr.statistics.merge import merge
from ccvr.statistics.moments import ClassStatistics
from ccvr.statistics.source import Source

C, D = 4, 6
HEAD = LinearHead(torch.zeros(C, D), None)
Part = tuple[np.ndarray, np.ndarray]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(counts: tuple[int, ...] = (50, 20, 80, 30), seed: int = 0, spread: float = 1.0, d: int = D) -> Part:
    """Classes of different sizes whose features are correlated, far from the origin, and of different scales."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((d, d)) + np.eye(d)
    y = rng.permutation(np.repeat(np.arange(C), counts))
    z = 3 + rng.standard_normal((C, d))[y] + spread * rng.standard_normal((len(y), d)) @ mixing
    return z * np.linspace(0.3, 4, d), y


def split(z: np.ndarray, y: np.ndarray, num_clients: int, seed: int = 1) -> list[Part]:
    owner = np.random.default_rng(seed).integers(0, num_clients, len(y))
    return [(z[owner == k], y[owner == k]) for k in range(num_clients) if (owner == k).any()]


def sums(parts: list[Part], kind: str) -> ClassStatistics:
    return merge(statistics_of(torch.from_numpy(z), torch.from_numpy(y), C, kind=kind) for z, y in parts)


def fitted(method: Calibrator, z: np.ndarray, y: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights [C, d] and biases [C] from five clients' statistics."""
    head = method.fit(HEAD, sums(split(z, y, 5), kind), rng=seeded())
    return head.weight.detach().double().numpy(), head.bias.detach().double().numpy()


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Up to the rounding of float32 weights."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def close_for_softmax(found: np.ndarray, expected: np.ndarray) -> None:
    """What is the same for all classes changes no prediction and no probability."""
    close(found - found.mean(0), expected - expected.mean(0))


# --- lda --------------------------------------------------------------------------------------------------------------


def pooled_covariance(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    centred = np.concatenate([z[y == label] - z[y == label].mean(0) for label in np.unique(y)])
    return centred.T @ centred / (len(y) - len(np.unique(y)))


@pytest.mark.parametrize("kind", ["full", "pooled"])
def test_lda_is_scikit_learn_s(kind):
    """Which divides the scatter by N where S_p divides it by N − C, and takes priors from counts."""
    z, y = samples()
    plain = LinearDiscriminantAnalysis(solver="lsqr").fit(z, y)
    weight, bias = fitted(Lda(priors="counts"), z, y, kind)
    factor, log_prior = (len(y) - C) / len(y), np.log(np.bincount(y) / len(y))
    close_for_softmax(weight, factor * plain.coef_)
    close_for_softmax(bias, factor * (plain.intercept_ - log_prior) + log_prior)
    scores = z @ weight.T + bias
    assert (scores.argmax(1) == plain.predict(z)).mean() > 0.99


@pytest.mark.parametrize("shrinkage", ["none", "fixed:0.2", "oas"])
@pytest.mark.parametrize("priors", ["uniform", "counts"])
def test_lda_is_the_formula_on_standardised_features(shrinkage, priors):
    z, y = samples()
    std = np.sqrt(np.diag(pooled_covariance(z, y)))
    x = z / std
    cov, mean = pooled_covariance(x, y), np.stack([x[y == label].mean(0) for label in range(C)])
    squares, trace, n = np.trace(cov @ cov), np.trace(cov), len(y) - C
    rho = ((1 - 2 / D) * squares + trace**2) / ((n + 1 - 2 / D) * (squares - trace**2 / D))
    amount = {"none": 0.0, "fixed:0.2": 0.2, "oas": min(1.0, rho)}[shrinkage]
    inverse = np.linalg.inv((1 - amount) * cov + amount * trace / D * np.eye(D))
    weight, bias = fitted(Lda(shrinkage=shrinkage, priors=priors), z, y, "pooled")
    close_for_softmax(weight, mean @ inverse / std)
    log_prior = np.log(np.bincount(y) / len(y)) if priors == "counts" else np.zeros(C)
    close_for_softmax(bias, np.array([-0.5 * mu @ inverse @ mu for mu in mean]) + log_prior)
    assert amount == 0 or amount > 0.01, "shrinkage is visible here"


# --- ridge ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "pooled"])
@pytest.mark.parametrize("strength", [0.0, 1e-3, 0.5])
def test_ridge_is_least_squares_on_one_hot_labels(kind, strength):
    z, y = samples()
    scaler = StandardScaler().fit(z)
    plain = LeastSquares(alpha=strength * len(y)).fit(scaler.transform(z), np.eye(C)[y])
    weight, bias = fitted(Ridge(ridge=strength), z, y, kind)
    close(weight, plain.coef_ / scaler.scale_)
    close(bias, plain.intercept_ - (plain.coef_ / scaler.scale_) @ scaler.mean_)


def test_ridge_by_the_normal_equations():
    """W = (XᵀX + λ N I)⁻¹ XᵀY of centred, standardised X and centred one-hot Y."""
    z, y = samples((9, 9, 0, 30))
    x, target = (z - z.mean(0)) / z.std(0), np.eye(C)[y] - np.bincount(y, minlength=C) / len(y)
    plain = np.linalg.solve(x.T @ x + 0.01 * len(y) * np.eye(D), x.T @ target).T / z.std(0)
    weight, bias = fitted(Ridge(ridge=0.01), z, y, "pooled")
    there = [0, 1, 3]
    close(weight[there], plain[there])
    close(bias[there], (np.bincount(y, minlength=C) / len(y) - plain @ z.mean(0))[there])


def test_kernel_is_ridge_on_random_features():
    z, y = samples()
    raw = torch.from_numpy(z).float()
    projection = random_features(statistics_of(raw, torch.from_numpy(y), C, kind="diagonal"), num_features=40, seed=3)
    source = Source(projection=projection.digest)
    phi = RandomFeatures.of(projection)
    parts = [(torch.from_numpy(x).float(), torch.from_numpy(labels)) for x, labels in split(z, y, 5)]
    merged = merge(
        statistics_of(phi(x), labels, C, kind="kernel", source=source, projection=projection) for x, labels in parts
    )
    head = Kernel(ridge=0.01).fit(HEAD, merged, rng=seeded())
    features = phi(raw).double().numpy()
    scaler = StandardScaler().fit(features)
    plain = LeastSquares(alpha=0.01 * len(y)).fit(scaler.transform(features), np.eye(C)[y])
    expected = plain.predict(scaler.transform(features))
    np.testing.assert_allclose(head(raw).detach(), expected, atol=1e-4)  # the head makes the random features itself


def test_a_projection_that_does_not_make_the_features_is_refused():
    z, y = (torch.from_numpy(part) for part in samples())
    first = statistics_of(z, y, C, kind="diagonal")
    projection, other = (random_features(first, num_features=5, seed=seed) for seed in (0, 1))
    phi = RandomFeatures.of(projection)(z.float())
    wrong = statistics_of(phi, y, C, kind="kernel", source=Source(projection=projection.digest), projection=other)
    with pytest.raises(CalibrationError, match="the projection in these statistics does not make"):
        Kernel().fit(HEAD, wrong, rng=seeded())


# --- cof --------------------------------------------------------------------------------------------------------------


def plain_cof(z: np.ndarray, y: np.ndarray, covariances: list[np.ndarray], strength: float) -> np.ndarray:
    """FedCOF's head: (Σ_c (n_c − 1) S_c + N m mᵀ + γ I)⁻¹ B, each class's column scaled to length 1."""
    gram = len(z) * np.outer(z.mean(0), z.mean(0))
    for label, cov in enumerate(covariances):
        gram = gram + ((y == label).sum() - 1) * cov
    gram = gram + strength * np.trace(gram) / z.shape[1] * np.eye(z.shape[1])
    right = np.stack([z[y == label].sum(0) for label in range(C)], axis=1)
    columns = np.linalg.inv(gram) @ right
    return (columns / np.linalg.norm(columns, axis=0)).T


@pytest.mark.parametrize("kind", ["full", "pooled"])
def test_cof_is_fedcof_s_head_on_true_covariances(kind):
    z, y = samples()
    weight, bias = fitted(Cof(ridge=0.01), z, y, kind)
    close(weight, plain_cof(z, y, [np.cov(z[y == label], rowvar=False) for label in range(C)], 0.01))
    assert not bias.any()
    np.testing.assert_allclose(np.linalg.norm(weight, axis=1), 1, rtol=1e-5)


def covariance_of_means(parts: list[Part], label: int) -> np.ndarray:
    """Σ_k n_kc (mu_kc − mu_c)(mu_kc − mu_c)ᵀ / (K_c − 1), from what each client would send."""
    sent = [(int((y == label).sum()), z[y == label].mean(0)) for z, y in parts if (y == label).any()]
    mean = sum(n * mu for n, mu in sent) / sum(n for n, _ in sent)
    scatter = sum(n * np.outer(mu - mean, mu - mean) for n, mu in sent)
    return scatter / (len(sent) - 1) if len(sent) > 1 else np.zeros((D, D))


@pytest.mark.parametrize("num_clients", [2, 5, 40])
def test_cof_means_is_fedcof_from_the_clients_means(num_clients):
    z, y = samples((50, 20, 80, 30))
    parts = split(z, y, num_clients)
    head = CofMeans(ridge=0.01).fit(HEAD, sums(parts, "means"), rng=seeded())
    covariances = [covariance_of_means(parts, label) for label in range(C)]
    assert np.linalg.matrix_rank(covariances[0]) == min(D, num_clients - 1)
    close(head.weight.detach().numpy(), plain_cof(z, y, covariances, 0.01))


def test_cof_means_where_one_client_has_all_of_a_class():
    z, y = samples()
    parts = [(z[y == 3], y[y == 3]), *split(z[y != 3], y[y != 3], 4)]
    head = CofMeans(ridge=0.01).fit(HEAD, sums(parts, "means"), rng=seeded())
    covariances = [covariance_of_means(parts, label) for label in range(C)]
    assert not covariances[3].any()
    close(head.weight.detach().numpy(), plain_cof(z, y, covariances, 0.01))


def test_the_covariance_of_many_clients_means_is_that_of_the_samples():
    """Why cof-means works: each mean scatters 1/n as much, and counts n times."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(C), 6000)
    z = rng.standard_normal((len(y), D)) * np.linspace(1, 2, D)
    parts = split(z, y, 1000)
    merged = sums(parts, "means")
    found = merged.scatter(0) / (int(merged.clients[0]) - 1)
    close(found.numpy(), covariance_of_means(parts, 0))
    assert np.abs(found.numpy() - np.diag(np.linspace(1, 2, D) ** 2)).max() < 5 * 4 * np.sqrt(2 / 1000)


# --- ncm --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["means", "diagonal", "pooled", "full"])
def test_ncm_is_the_nearest_centroid(kind):
    z, y = samples()
    weight, bias = fitted(Ncm(), z, y, kind)
    new, _ = samples((100, 100, 100, 100), seed=0, spread=2)
    expected = NearestCentroid().fit(z, y).predict(new)
    assert ((new @ weight.T + bias).argmax(1) == expected).mean() > 0.995, "but for ties within float32"
    assert len(np.unique(expected)) == C


# --- all of them ------------------------------------------------------------------------------------------------------

FORMS = {"lda": (Lda(), "pooled"), "ridge": (Ridge(), "pooled"), "cof": (Cof(), "pooled"), "ncm": (Ncm(), "means")}


@pytest.mark.parametrize("form", [*FORMS, "cof-means"])
def test_a_class_that_nobody_has_scores_below_all_others(form):
    method, kind = (CofMeans(), "means") if form == "cof-means" else FORMS[form]
    z, y = samples((30, 0, 40, 20))
    weight, bias = fitted(method, z, y, kind)
    assert not weight[1].any()
    assert bias[1] <= -1e8
    others, _ = fitted(method, z, np.array([0, 9, 1, 2])[y], kind)  # without the class at all
    close(weight[[0, 2, 3]], others[:3])


@settings(max_examples=15)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_any_split_gives_the_same_head(num_clients, seed):
    z, y = samples()
    for method, kind in FORMS.values():
        one, many = (
            method.fit(HEAD, sums(parts, kind), rng=seeded()) for parts in ([(z, y)], split(z, y, num_clients, seed))
        )
        close(many.weight.detach().numpy(), one.weight.detach().numpy())
        close(many.bias.detach().numpy(), one.bias.detach().numpy())


@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(0.1, 10), st.floats(-5, 5))
def test_lda_and_ridge_do_not_care_about_units(seed, factor, shift):
    """Features times any numbers, plus any: the scores stay, up to what all classes of a sample share."""
    z, y = samples(seed=seed)
    factors = factor ** np.linspace(-1, 1, D)
    for method in (Lda(shrinkage="oas"), Ridge()):
        (w, b), (w2, b2) = (fitted(method, x, y, "pooled") for x in (z, z * factors + shift))
        before, after = z @ w.T + b, (z * factors + shift) @ w2.T + b2
        before, after = (scores - scores.mean(1, keepdims=True) for scores in (before, after))
        np.testing.assert_allclose(after, before, atol=1e-3 * np.abs(before).max())


def test_a_feature_that_never_changes_is_no_harm():
    z, y = samples()
    constant = np.column_stack([z, np.full(len(z), 7.0), np.zeros(len(z))])
    for method, kind in FORMS.values():
        weight, bias = fitted(method, constant, y, kind)
        assert np.isfinite(weight).all()
        if isinstance(method, Lda | Ridge):
            plain = fitted(method, z, y, kind)
            expected = (z @ plain[0].T + plain[1]).argmax(1)
            assert ((constant @ weight.T + bias).argmax(1) == expected).mean() > 0.99


@pytest.mark.parametrize(
    ("method", "kind"),
    [*FORMS.values(), (Ridge(ridge=0.0), "pooled"), (Cof(ridge=0.0), "pooled"), (Lda(shrinkage="oas"), "pooled")],
    ids=[*FORMS, "ridge of none", "cof of none", "lda shrunk"],
)
def test_fewer_samples_than_features(method, kind):
    z, y = samples((4, 3, 5, 3), d=40, spread=0.3)
    weight, bias = fitted(method, z, y, kind)
    assert np.isfinite(weight).all()
    assert np.isfinite(bias).all()
    assert ((z @ weight.T + bias).argmax(1) == y).mean() > 0.6, "it still tells what it saw apart"


@pytest.mark.parametrize("method", [Lda(), Ridge(), Ridge(ridge=0.0)], ids=["lda", "ridge", "ridge of none"])
@pytest.mark.parametrize("kind", ["full", "pooled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["sent as float32", "sent as float64"])
def test_features_that_say_the_same_twice_are_no_harm(method, kind, dtype):
    """As a layer and the linear one behind it do. What is left of them is the rounding of float32 features and sums."""
    z, y = samples((200, 100, 300, 100), spread=0.5)
    behind = z @ np.random.default_rng(1).standard_normal((D, 8)) + 5
    twice = torch.from_numpy(np.column_stack([z, behind])).float()
    parts = [(twice[k::3], torch.from_numpy(y)[k::3]) for k in range(3)]
    merged = merge(statistics_of(*part, C, kind=kind).to_bytes(dtype=dtype) for part in parts)
    head = method.fit(HEAD, merged, rng=seeded())
    weight, bias = fitted(type(method)(), z, y, kind)
    expected = (z @ weight.T + bias).argmax(1)
    assert (head(twice).argmax(1).numpy() == expected).mean() > 0.97


@pytest.mark.parametrize("form", [*FORMS, "cof-means"])
def test_one_sample_of_each_class(form):
    method, kind = (CofMeans(), "means") if form == "cof-means" else FORMS[form]
    z = 5 * np.eye(C, D) + np.random.default_rng(0).standard_normal((C, D))
    given = sums([(z, np.arange(C))], kind)
    if form == "lda":
        with pytest.raises(CalibrationError, match=r"^no class has two different samples.* Use ncm\.$"):
            method.fit(HEAD, given, rng=seeded())
        return
    head = method.fit(HEAD, given, rng=seeded())
    assert all(tensor.isfinite().all() for tensor in head.parameters())


def test_closed_forms_carry_the_transform_and_the_taps_of_the_statistics():
    z, y = (torch.from_numpy(part) for part in samples())
    source = Source(transform="signed-tukey:0.5", taps=("a", "b.c"))
    for method, kind in (*FORMS.values(), (CofMeans(), "means")):
        head = method.fit(HEAD, statistics_of(z, y, C, kind=kind, source=source), rng=seeded())
        assert head.transform == FeatureTransform("signed-tukey", 0.5)
        assert head.taps == ("a", "b.c")


# --- the solver -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 2**31))
def test_solve_is_the_inverse_or_the_pseudo_inverse(d, rank, seed):
    rng = np.random.default_rng(seed)
    factor = np.linalg.qr(rng.standard_normal((d, d)))[0][:, : min(rank, d)]
    matrix = (factor * rng.uniform(0.5, 2, factor.shape[1])) @ factor.T
    right = rng.standard_normal((d, 3))
    found = solve(torch.from_numpy(matrix), torch.from_numpy(right))
    np.testing.assert_allclose(found, np.linalg.pinv(matrix, rcond=1e-8, hermitian=True) @ right, atol=1e-8)
