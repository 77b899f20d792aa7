"""Members of small studies."""

import pytest
from population_members import Engine


@pytest.fixture
def engine():
    return Engine()
