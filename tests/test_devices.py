"""Threads that each compute on one core."""

from __future__ import annotations

import os

import pytest
import torch
from tests.forked import in_child

from pams_mil.models.core.devices import CoreTeam


@pytest.mark.usefixtures("three_threads")
def test_results_come_in_order_from_threads_of_one_core_each():
    results = CoreTeam().map(lambda item: (item, torch.get_num_threads()), range(20))
    assert results == [(item, 1) for item in range(20)]
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_error_reaches_the_caller_and_the_team_goes_on():
    team = CoreTeam()
    with pytest.raises(ZeroDivisionError):
        team.map(lambda item: 1 / item, [1, 0, 2])
    assert team.map(lambda item: 1 / item, [1, 2]) == [1.0, 0.5]


@pytest.mark.usefixtures("three_threads")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_process_starts_threads_of_its_own():
    team = CoreTeam()
    team.map(abs, [-1, -2])

    def in_the_child():
        assert team.map(abs, [-1, -2]) == [1, 2]

    assert in_child(in_the_child) == 0


def test_one_thread_means_no_team():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        team = CoreTeam()
        assert team.map(abs, [-1, -2, -3]) == [1, 2, 3]
        assert team._pool is None
    finally:
        torch.set_num_threads(before)
