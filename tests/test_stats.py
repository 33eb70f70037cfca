from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.proportion import proportion_confint

from pimem.errors import DataError
from pimem.stats import half_width, macro_mean, mcnemar, mean, newcombe, paired, wilson


@pytest.mark.parametrize(("right", "n"), [(0, 4), (3, 4), (4, 4), (49, 64), (64, 64), (271, 503)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_is_statsmodels_wilson(right: int, n: int, level: float) -> None:
    assert wilson(right, n, level) == pytest.approx(proportion_confint(right, n, 1 - level, method="wilson"), abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 0), (5, 0), (7, 12), (30, 30), (3, 400)])
def test_mcnemar_is_statsmodels_exact(a: int, b: int) -> None:
    expected = reference_mcnemar([[5, a], [b, 5]], exact=True).pvalue if a + b else 1.0
    assert mcnemar(a, b) == pytest.approx(expected, rel=1e-9)


def test_independent_binary_scores_get_wilson() -> None:
    estimate = mean([1, 0, 1, 1], ["a", "b", "c", "d"])
    assert (estimate.value, estimate.n, estimate.clusters, estimate.how) == (0.75, 4, 4, "wilson")
    assert (estimate.low, estimate.high) == pytest.approx(proportion_confint(3, 4, method="wilson"))


def test_cluster_bootstrap_is_scipys_over_cluster_means() -> None:
    """With equal cluster sizes it is the ordinary bootstrap of the cluster means."""
    rng = np.random.default_rng(3)
    per_cluster = np.clip(rng.normal(0.6, 0.2, (40, 1)) + rng.normal(0, 0.05, (40, 5)), 0, 1)
    estimate = mean(per_cluster.ravel(), np.repeat(np.arange(40), 5))
    reference = scipy.stats.bootstrap(
        (per_cluster.mean(axis=1),), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high), abs=0.004)
    assert (estimate.n, estimate.clusters, estimate.how) == (200, 40, "cluster bootstrap")


def test_repeating_questions_adds_no_certainty() -> None:
    scores = np.array([1.0, 0, 1, 1, 0, 0.5, 1, 0, 1, 1])
    once = mean(scores, range(10))
    ten_times = mean(np.tile(scores, 10), np.tile(np.arange(10), 10))
    assert ten_times.half_width == pytest.approx(once.half_width)
    as_if_new = mean(np.tile(scores, 10), range(100))
    assert as_if_new.half_width < 0.5 * once.half_width


def test_a_cell_of_only_right_answers_is_no_proof() -> None:
    single = mean([1, 1, 1, 1], "abcd")
    assert (single.low, single.high) == pytest.approx(proportion_confint(4, 4, method="wilson"))
    twice = mean([1, 1, 1, 1], "aabb")
    assert (twice.value, twice.high, twice.how) == (1, 1, "clopper-pearson")
    assert twice.low == pytest.approx(proportion_confint(2, 2, method="beta")[0])
    half = mean([0.5, 0.5], "ab")
    assert half.low < 0.5 < half.high


def test_one_question_many_times_tells_little() -> None:
    estimate = mean([1, 0, 1, 1], "aaaa")
    assert (estimate.clusters, estimate.how) == (1, "clopper-pearson")
    assert estimate.low < 0.1
    assert estimate.high > 0.95


def test_counts_beyond_one_are_means_too() -> None:
    estimate = mean([2, 2, 3, 2], "abcd")
    assert (estimate.value, estimate.how) == (2.25, "cluster bootstrap")
    assert (mean([2, 2], "ab").low, mean([2, 2], "ab").high) == (2, 2)


def test_macro_mean_weighs_lengths_alike() -> None:
    scores, groups, clusters = [1, 1, 1, 0], ["7K", "7K", "7K", "14K"], ["a", "b", "c", "a"]
    estimate = macro_mean(scores, groups, clusters)
    assert (estimate.value, estimate.n, estimate.clusters) == (0.5, 4, 3)
    assert mean(scores, clusters).value == 0.75


def test_macro_mean_of_full_tables_is_the_mean() -> None:
    rng = np.random.default_rng(0)
    scores = (rng.random((30, 4)) < 0.7).astype(float)
    clusters, groups = np.repeat(np.arange(30), 4), np.tile(np.arange(4), 30)
    macro, plain = macro_mean(scores.ravel(), groups, clusters), mean(scores.ravel(), clusters)
    assert (macro.value, macro.low, macro.high) == pytest.approx((plain.value, plain.low, plain.high))


def test_strata_keep_the_spread_between_tasks_out_of_the_interval() -> None:
    """Eleven tasks of 64 questions each: the standard error is that of a stratified sample, whatever the tasks' means are."""
    rng = np.random.default_rng(1)
    chances = np.linspace(0.05, 0.95, 11)
    scores = (rng.random((11, 64)) < chances[:, None]).astype(float)
    tasks = np.repeat(np.arange(11), 64)
    made = macro_mean(scores.ravel(), tasks, range(704), strata=tasks)
    error = np.sqrt((scores.var(axis=1) / 64).sum()) / 11
    assert made.value == pytest.approx(scores.mean())
    assert made.half_width == pytest.approx(scipy.stats.norm.ppf(0.975) * error, rel=0.05)
    again = macro_mean(scores.ravel()[::-1], tasks[::-1], range(703, -1, -1), strata=tasks[::-1])
    assert (again.value, again.low, again.high) == pytest.approx((made.value, made.low, made.high))


def test_one_stratum_is_none() -> None:
    scores, groups, clusters = [1, 0, 1, 0, 1, 1], list("xxxyyy"), list("abcabc")
    assert macro_mean(scores, groups, clusters, strata=["t"] * 6) == macro_mean(scores, groups, clusters)


def test_a_cluster_lies_in_one_stratum() -> None:
    with pytest.raises(DataError, match="lies in two strata"):
        macro_mean([1, 0], ["x", "y"], ["a", "a"], strata=["x", "y"])
    with pytest.raises(DataError, match="each score needs its stratum"):
        macro_mean([1, 0], ["x", "y"], ["a", "b"], strata=["x"])


def test_all_right_in_every_stratum_is_no_proof_either() -> None:
    made = macro_mean([1.0] * 8, list("xxxxyyyy"), range(8), strata=list("xxxxyyyy"))
    assert (made.low, made.how) == (pytest.approx(proportion_confint(8, 8, method="beta")[0]), "clopper-pearson")


def test_a_paired_difference_over_groups_is_that_of_their_means() -> None:
    a, b, groups = [1, 1, 1, 1], [0, 0, 1, 0], ["x", "x", "x", "y"]
    whole = paired(a, b, range(4), groups=groups).difference
    assert whole.value == pytest.approx((2 / 3 + 1) / 2)
    assert paired(a, b, range(4)).difference.value == 0.75
    rng = np.random.default_rng(2)
    first, second = rng.random((2, 60))
    tasks = np.repeat([0, 1, 2], 20)
    made = paired(first, second, range(60), groups=tasks, strata=tasks).difference
    error = np.sqrt(((first - second).reshape(3, 20).var(axis=1) / 20).sum()) / 3
    assert made.half_width == pytest.approx(scipy.stats.norm.ppf(0.975) * error, rel=0.05)


def test_newcombe_is_statsmodels() -> None:
    from statsmodels.stats.proportion import confint_proportions_2indep

    made = newcombe(26 / 32, wilson(26, 32), 53 / 64, wilson(53, 64))
    assert made == pytest.approx(confint_proportions_2indep(26, 32, 53, 64, method="newcomb"), abs=2e-4)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60))
def test_a_sum_of_scores_never_gets_less_than_the_interval_of_a_mean(scores: list[float]) -> None:
    """A mean of scores in 0..1 has at most the standard error that Wilson's interval takes at its centre."""
    n, share = len(scores), float(np.mean(scores))
    low, high = wilson(min(n, max(0.0, float(np.sum(scores)))), n)
    assert low <= share + 1e-9
    assert high >= share - 1e-9
    assert np.var(scores) <= share * (1 - share) + 1e-9


def test_pairing_counts_discordant_samples() -> None:
    a, b = [1, 1, 1, 0, 0, 1], [1, 0, 0, 0, 1, 0]
    result = paired(a, b, range(6))
    assert result.difference.value == pytest.approx(2 / 6)
    assert (result.only_first, result.only_second) == (3, 1)
    assert result.p_value == pytest.approx(scipy.stats.binomtest(1, 4).pvalue)


def test_paired_bootstrap_is_scipys() -> None:
    rng = np.random.default_rng(5)
    a = rng.random(50)
    b = np.clip(a - 0.1 + rng.normal(0, 0.1, 50), 0, 1)
    result = paired(a, b, range(50))
    reference = scipy.stats.bootstrap(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), paired=True, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert (result.difference.low, result.difference.high) == pytest.approx((reference.low, reference.high), abs=0.004)
    assert result.p_value is None
    assert result.difference.excludes(0)


def test_pairing_takes_out_the_difficulty_of_questions() -> None:
    ease = np.linspace(0, 1, 40)
    assert paired(ease, ease * 0.9, range(40)).difference.half_width < 0.25 * mean(ease, range(40)).half_width


def test_equal_scores_leave_a_difference_open() -> None:
    result = paired([1, 0, 1], [1, 0, 1], "abc")
    assert (result.difference.value, result.p_value) == (0, 1)
    assert result.difference.low == -result.difference.high < -0.5


def test_no_mcnemar_over_repeated_questions() -> None:
    assert paired([1, 1], [0, 0], "aa").p_value is None


def test_half_width_is_what_n_allows() -> None:
    low, high = proportion_confint(51, 64, method="wilson")
    assert half_width(64, 51 / 64) == pytest.approx((high - low) / 2)
    assert half_width(64, 0.8) == pytest.approx(0.097, abs=0.001)
    assert half_width(4) > 0.3


@pytest.mark.parametrize(
    ("scores", "clusters", "message"),
    [
        ([], [], "no scores"),
        ([[1.0]], ["a"], "no scores"),
        ([1.0, float("nan")], ["a", "b"], "1 of 2 scores are missing"),
        ([1.0], ["a", "b"], "1 scores but 2 cluster ids"),
        ([1.0, 0.0], ["a", None], "cluster id of score 1 is missing"),
        ([1.0, 0.0], ["a", ""], "cluster id of score 1 is missing"),
        ([1.0, 0.0], [float("nan"), "b"], "cluster id of score 0 is missing"),
    ],
)
def test_bad_input_never_yields_a_number(scores: list[float], clusters: list[object], message: str) -> None:
    for attempt in (
        lambda: mean(scores, clusters),
        lambda: macro_mean(scores, ["g"] * len(scores), clusters),
        lambda: paired(scores, scores, clusters),
    ):
        with pytest.raises(DataError, match=message):
            attempt()


def test_more_bad_input() -> None:
    with pytest.raises(DataError, match="pair them by sample"):
        paired([1, 0], [1], "ab")
    with pytest.raises(DataError, match="each score needs its group"):
        macro_mean([1, 0], ["g"], "ab")
    for level in (0, 1, 95):
        with pytest.raises(DataError, match="between 0 and 1"):
            mean([1, 0], "ab", level)
    for right, n in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(DataError, match="right of"):
            wilson(right, n)
    with pytest.raises(DataError, match="negative"):
        mcnemar(-1, 2)
    with pytest.raises(DataError, match="half-width"):
        half_width(0)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from("abcde")), min_size=1, max_size=20))
def test_an_interval_holds_its_mean_whatever_the_order_of_rows(rows: list[tuple[float, str]]) -> None:
    scores, clusters = [r[0] for r in rows], [r[1] for r in rows]
    estimate = mean(scores, clusters)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert estimate.low < estimate.high
    back = mean(scores[::-1], clusters[::-1])
    assert (back.low, back.high) == pytest.approx((estimate.low, estimate.high))
    assert mean(scores, clusters) == estimate


def test_coverage_of_the_interval_is_about_its_level() -> None:
    """Questions of unequal difficulty, three samples each: about 95 of 100 intervals hold the true mean."""
    rng = np.random.default_rng(11)
    held = 0
    for trial in range(60):
        skill = rng.beta(2, 2, 40)
        scores = (rng.random((40, 3)) < skill[:, None]).astype(float)
        estimate = mean(scores.ravel(), np.repeat(np.arange(40), 3), seed=trial)
        held += estimate.low <= 0.5 <= estimate.high
    assert held >= 0.85 * 60
