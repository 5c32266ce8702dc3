"""What is wrong with a processor is said before anything is sent to executors."""

import threading

import pytest
from operator_kit import ByFunction

from statekeep.errors import ConfigError
from statekeep.spark.grouped_data import _pickled


def test_a_class_in_place_of_its_object_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"is a class: class=ByFunction.*ByFunction\(\)"):
        _pickled(ByFunction)  # type: ignore[arg-type] # the mistake


def test_a_processor_that_holds_a_lock_is_refused_with_the_remedy() -> None:
    processor = ByFunction()
    processor.variable = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot be sent to executors: class=ByFunction.*init"):
        _pickled(processor)
