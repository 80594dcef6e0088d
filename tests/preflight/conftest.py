from __future__ import annotations

import pytest

from exaserve.cli.preflight import load_codes, load_expectations
from exaserve.preflight import CodeEntry, Context, Expectations


@pytest.fixture(scope="session")
def expectations() -> Expectations:
    return load_expectations()


@pytest.fixture(scope="session")
def codes() -> dict[str, CodeEntry]:
    return load_codes()


@pytest.fixture
def context(expectations: Expectations) -> Context:
    return Context(machines=expectations.machines, limits=expectations.limits)


@pytest.fixture
def h100(context: Context, expectations: Expectations) -> Context:
    from dataclasses import replace

    machine = next(each for each in expectations.machines if each.name == "hgx-h100-8")
    return replace(context, machine=machine, machine_given=True)
