"""Databases for the tests of outbox and inbox."""

from tests.databases import database_url as database_url
from tests.databases import engine as engine
from tests.databases import postgresql_url as postgresql_url
