from __future__ import annotations

import pytest

from hopyard.stores.sql.database import Database
from hopyard.testing.store_contract import StoreContract
from hopyard.testing.stores import Stores
from tests.stores.sql.conftest import stores_over


class TestSqlite(StoreContract):
    @pytest.fixture
    def stores(self, sqlite_database: Database) -> Stores:
        return stores_over(sqlite_database)


class TestPostgreSQL(StoreContract):
    @pytest.fixture
    def stores(self, postgres_database: Database) -> Stores:
        return stores_over(postgres_database)
