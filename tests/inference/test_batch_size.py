"""The size of a batch: the measured cost of batches, and its limits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.inference.scheduling.batch_size import MAX_FIXED_BATCH_S, SHARE_S, UNMEASURED, BatchCost, batch_size


def measured(fixed_s, query_s, counts, noise=0.0):
    cost, draw = BatchCost(), random.Random(1)
    for count in counts:
        cost.largest = max(cost.largest, count)
        cost.observe(count, (fixed_s + query_s * count) * draw.lognormvariate(0, noise))
    return cost


def size(cost, wanted=0, *, target_s=0.3, per_s=None):
    return batch_size(cost, wanted, target_s=target_s, per_s=per_s)


@given(fixed_s=st.floats(0.001, 5.0), part=st.floats(0.01, 0.5))
def test_the_cost_of_batches_of_different_sizes_has_a_fixed_part_whose_estimate_is_low(fixed_s, part):
    cost = measured(fixed_s, part * fixed_s, [1, 8, 64])
    assert 0.5 * fixed_s <= cost.fixed_s <= 0.7 * fixed_s
    assert cost.fixed_s + 64 * cost.query_s == pytest.approx(fixed_s + 64 * part * fixed_s)


def test_noise_makes_no_fixed_part():
    for counts in ([1] + [8] * 50 + [64] * 50, [9, 15, 16, 17] * 50):
        cost = measured(0.0, 0.03, counts, noise=0.05)
        assert cost.fixed_s == 0.0
        assert cost.query_s == pytest.approx(0.03, rel=0.1)


def test_workers_of_different_speed_make_no_fixed_part():
    cost = measured(0.0, 0.03, [10] * 20)
    cost.observe(2, 0.03 * 2 / 0.75)
    assert cost.fixed_s == 0.0


def test_a_slow_first_batch_is_forgotten_after_a_hundred_others():
    cost = measured(0.0, 0.01, [8] * 20)
    cost.observe(1, 0.5)
    assert cost.fixed_s > 0.05
    for _ in range(100):
        cost.observe(8, 0.08)
    assert cost.fixed_s == 0.0


def test_a_batch_takes_the_target_time_or_the_time_of_the_share_of_its_job():
    cost = measured(0.0, 0.003, [1, 8, 64])
    assert size(cost) == 100
    assert size(cost, per_s=50.0) == 50 * SHARE_S
    assert size(cost, per_s=1e6) == 100


def test_a_batch_is_not_smaller_than_its_overhead_allows():
    assert size(measured(0.0, 0.003, [1, 8, 64]), per_s=0.0) == 3  # 2 ms to dispatch: a fifth of the time
    assert 30 <= size(measured(0.01, 0.001, [1, 8, 64]), per_s=0.0) <= 48  # the fixed 12 ms are a fifth or more
    assert 4 <= size(measured(1.0, 0.1, [1, 8]), per_s=0.0) <= 10  # longer than the target, because one query is


def test_if_all_batches_have_one_size_another_is_tried_now_and_then():
    assert size(measured(0.0, 0.01, [20] * 200)) == 30 // 4
    assert size(measured(0.0, 0.25, [1] * 200)) == 4
    assert size(measured(0.0, 0.4, [1] * 200)) == 1  # it would take more than a second
    assert size(measured(0.0, 0.01, [10] * 200), 10) == 10  # the user's choice


def test_a_batch_size_of_the_user_is_a_maximum():
    cost = measured(0.0, 0.06, [1, 8])
    assert size(cost, 5) == 5
    assert size(cost, 500) == round(MAX_FIXED_BATCH_S / 0.06)
    assert size(cost, 500, per_s=20.0) == 20 * SHARE_S
    assert size(cost, 2, per_s=0.0) == 1


def test_before_the_first_result_batches_are_small_and_automatic_ones_grow_slowly():
    assert size(BatchCost(), 500) == UNMEASURED
    assert size(BatchCost(), 5) == 5
    assert size(BatchCost()) == 1
    assert size(measured(0.0, 1e-6, [1])) == 8


def test_a_limit_of_seconds_counts_the_fixed_part_and_permits_a_single_query():
    assert BatchCost().max_queries_in(0.01) >= UNMEASURED
    cost = measured(0.0, 0.004, [1, 8, 64])
    assert [cost.max_queries_in(seconds) for seconds in (0.0165, 0.002)] == [4, 1]
    cost = measured(0.1, 0.004, [1, 8, 64])
    assert cost.max_queries_in(cost.fixed_s + 5.5 * cost.query_s) == 5
    assert cost.max_queries_in(0.01) == 1


def test_batches_without_computation_after_others_have_a_size():
    cost = measured(0.1, 0.01, [1])
    cost.observe(16, 0.0)  # the model was removed from the memory, and can no longer be loaded
    assert size(cost) >= 1
    assert size(cost, wanted=5) == 5
    assert cost.max_queries_in(1.0) >= 1
