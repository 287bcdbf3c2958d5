"""Each policy alone: the choice among contenders."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.inference.policies.policy import POLICIES, Contender
from chimera.inference.policies.rate_ratio import targets

NAMES = ("equal-split", "fair-share", "first-come", "lowest-rate", "rate-ratio")


def contender(order, **given):
    plain = {"weight": 1.0, "charged": 0.0, "batch": 10, "rate": 0.0, "workers": 0, "loading": 0, "loaded": True}
    return Contender(job=str(order), order=order, **plain | given)


def chosen(policy, *contenders, workers=10):
    return POLICIES.create(policy).choose(contenders, workers)


def test_all_policies_have_names():
    assert tuple(entry.name for entry in POLICIES.entries()) == NAMES


@st.composite
def contenders(draw):
    one = st.builds(
        dict,
        weight=st.floats(0.1, 10), charged=st.floats(0, 1e6), batch=st.integers(1, 500),
        rate=st.just(0.0) | st.floats(0.1, 1e4), workers=st.integers(0, 20), loading=st.integers(0, 20), loaded=st.booleans(),
    )  # fmt: skip
    return [contender(order, **values) for order, values in enumerate(draw(st.lists(one, min_size=1, max_size=6)))]


@given(contenders(), st.integers(1, 1000))
@settings(max_examples=50)
def test_somebody_is_served_always_and_the_same_one_each_time(jobs, workers):
    for name in NAMES:
        assert chosen(name, *jobs, workers=workers) == chosen(name, *jobs, workers=workers)
        assert chosen(name, *jobs, workers=workers) in {one.job for one in jobs}


def test_fair_share_serves_the_lowest_charge_and_of_equals_the_first():
    assert chosen("fair-share", contender(0, charged=30.0), contender(1, charged=20.0, workers=5)) == "1"
    assert chosen("fair-share", contender(0), contender(1)) == "0"


@pytest.mark.parametrize(
    ("ahead", "weight", "served"), [(10.0, 1.0, "0"), (10.5, 1.0, "1"), (5.0, 2.0, "0"), (5.5, 2.0, "1")]
)
def test_fair_share_keeps_a_loaded_model_within_one_batch_per_weight(ahead, weight, served):
    loaded = contender(0, charged=100.0 + ahead, weight=weight, workers=3)
    assert chosen("fair-share", loaded, contender(1, charged=100.0, loaded=False, workers=1)) == served


def test_fair_share_loads_the_model_of_the_lowest_if_nobody_serves_it():
    assert chosen("fair-share", contender(0, charged=1.0, workers=9), contender(1, loaded=False)) == "1"


@pytest.mark.parametrize(("rate", "loading", "served"), [(0.0, 4, "1"), (0.0, 5, "0"), (7.0, 1, "1"), (7.0, 2, "0")])
def test_fair_share_lets_few_workers_load_a_model_at_once(rate, loading, served):
    behind = contender(1, loaded=False, loading=loading, workers=loading, rate=rate)
    workers = 8 if rate else 10  # an even share is 4 or 5; a job that makes progress may load on half of it
    assert chosen("fair-share", contender(0, charged=1e9, workers=3), behind, workers=workers) == served


def test_fair_share_lets_one_more_load_where_there_is_nothing_else_to_do():
    assert chosen("fair-share", contender(0, loaded=False, loading=10, workers=10)) == "0"


def test_equal_split_counts_workers_per_weight_and_stays_with_a_loaded_model():
    assert chosen("equal-split", contender(0, workers=3), contender(1, workers=2, charged=1e9)) == "1"
    assert chosen("equal-split", contender(0, workers=3), contender(1, workers=5, weight=2.0)) == "1"
    assert chosen("equal-split", contender(0, workers=3, loaded=False), contender(1, workers=3)) == "1"


def test_lowest_rate_counts_what_was_finished_per_weight():
    assert chosen("lowest-rate", contender(0, rate=30.0), contender(1, rate=20.0, workers=9)) == "1"
    assert chosen("lowest-rate", contender(0, rate=30.0, weight=2.0), contender(1, rate=20.0)) == "0"


def test_first_come_serves_one_after_the_other():
    assert chosen("first-come", contender(0, charged=1e9, workers=9), contender(1)) == "0"


def test_rate_ratio_gives_the_shares_of_its_formula():
    jobs = [contender(0, rate=50.0), contender(1, rate=30.0), contender(2, rate=20.0)]
    assert targets(jobs, 20) == {"0": 5, "1": 7, "2": 8}  # 20 times 50/200, 70/200 and 80/200
    assert chosen("rate-ratio", *(one._replace(workers=6) for one in jobs), workers=20) == "2"


def test_rate_ratio_counts_rates_per_weight():
    jobs = [contender(0, rate=60.0, weight=2.0), contender(1, rate=10.0)]
    assert targets(jobs, 40) == {"0": 10, "1": 30}  # rates per weight 30 and 10, so 40 times 10/40 and 30/40


def test_rate_ratio_gives_newcomers_an_even_share_and_the_rest_by_the_formula():
    assert targets([contender(0, rate=90.0), contender(1, rate=10.0), contender(2)], 12) == {"0": 1, "1": 7, "2": 4}


def test_rate_ratio_hands_out_what_rounding_leaves():
    assert targets([contender(0), contender(1), contender(2)], 11) == {"0": 4, "1": 4, "2": 3}


@given(contenders(), st.integers(1, 1000))
@settings(max_examples=50)
def test_rate_ratio_gives_all_workers_to_somebody(jobs, workers):
    found = targets(jobs, workers)
    assert sum(found.values()) == workers
    assert found.keys() == {one.job for one in jobs}
    assert min(found.values()) >= 0
