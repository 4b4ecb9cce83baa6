# SPDX-License-Identifier: Apache-2.0
"""Functions and classes of test modules that run in Spark's Python workers, which cannot import these modules.

Modules request the fixture with `pytest.mark.usefixtures("functions_by_value")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


@contextmanager
def pickled_by_value(*modules: ModuleType) -> Iterator[None]:
    """Pickle the functions and classes of these modules by value for the duration of the block."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def functions_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pickle the functions and classes of the test module by value."""
    with pickled_by_value(request.module):
        yield
