"""The budget of restarts: bounded, patient, and forgetful."""

from headrace.cluster.restarts import RestartBudget, RestartConfig


def test_the_first_restart_is_at_once_and_each_further_one_waits_twice_as_long():
    budget = RestartBudget(RestartConfig(max_restarts=5, min_delay_s=0.5, max_delay_s=1.5))
    assert [budget.take(0.0) for _ in range(6)] == [0.0, 0.5, 1.0, 1.5, 1.5, None]


def test_a_restart_long_ago_is_forgotten():
    budget = RestartBudget(RestartConfig(max_restarts=1, window_s=10.0))
    assert budget.take(0.0) == 0.0
    assert budget.take(10.0) is None
    assert budget.take(10.1) == 0.0


def test_no_restart_is_a_budget_too():
    assert RestartBudget(RestartConfig(max_restarts=0)).take(0.0) is None
