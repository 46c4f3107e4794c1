"""The factors of engines and the stated intervals."""

from typing import get_args

import pytest

from catalogs.errors import InputError
from simulator.networks.execution import Mode
from simulator.networks.factors import IntervalClass, interval_factor, load_factors, seconds_class


def test_each_class_has_an_interval_that_contains_the_prediction() -> None:
    assert all(interval_factor(kind) >= 1.0 for kind in get_args(IntervalClass))


def test_a_class_without_measurements_has_the_widest_interval() -> None:
    known = load_factors().interval_90
    for kind in set(get_args(IntervalClass)) - set(known):
        assert interval_factor(kind) == max(known.values())


def test_the_seconds_of_every_mode_have_a_class() -> None:
    for mode in get_args(Mode):
        assert seconds_class(False, mode) == mode
        assert seconds_class(True, mode) == "diffusion"


def test_an_unknown_class_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="memory"):
        interval_factor("memry")  # type: ignore[arg-type]
