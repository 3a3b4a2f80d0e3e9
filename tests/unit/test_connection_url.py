"""``DATABASE_URL`` as teams write it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.connection_url import parse_connection_url
from data_bridge.errors import DatabaseError


def test_prisma_parameters_are_understood_or_dropped() -> None:
    url = parse_connection_url(
        "postgresql://game:s3cret-pass@db.example.com:5433/game?schema=arena&pgbouncer=true&connection_limit=3"
        "&pool_timeout=20&socket_timeout=9&connect_timeout=15&sslmode=require&sslaccept=strict&statement_cache_size=0"
    )
    assert (url.hosts, url.ports, url.user, url.database) == (("db.example.com",), (5433,), "game", "game")
    assert (url.schema, url.is_pooled, url.max_connections, url.connect_timeout) == ("arena", True, 3, 15)
    assert url.tls_mode == "verify-full"


def test_schema_public_needs_no_search_path() -> None:
    assert parse_connection_url("postgresql://u@h/d?schema=public").schema is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@ep-cool-1-pooler.eu.example.tech/db",
        "postgresql://u:p@aws-0-eu.pooler.example.com:5432/postgres",
        "postgresql://u:p@db.example.com:6543/postgres",
        "postgresql://u:p@pgbouncer:5432/postgres",
    ],
)
def test_well_known_poolers_are_recognised(url: str) -> None:
    assert parse_connection_url(url).is_pooled


@pytest.mark.parametrize("password", ["p@ss/w#rd", "a:b@c:d", "semi;colon[1]"])
def test_passwords_that_should_have_been_encoded_still_work(password: str) -> None:
    url = parse_connection_url(f"postgres://user:{password}@host/db")
    assert (url.password, url.hosts, url.database) == (password, ("host",), "db")


def test_an_encoded_password_is_decoded() -> None:
    assert parse_connection_url("postgres://u:p%40ss%3Fword@h/d").password == "p@ss?word"


def test_a_socket_folder_in_the_query_wins_over_the_host() -> None:
    url = parse_connection_url("postgresql://u:p@localhost/d?host=/cloudsql/project:region:db")
    assert url.hosts == ("/cloudsql/project:region:db",)


def test_several_hosts_and_ipv6() -> None:
    url = parse_connection_url("postgresql://u@one:1,[::1]:2,three/d")
    assert (url.hosts, url.ports) == (("one", "::1", "three"), (1, 2, 5432))


def test_prismas_certificate_is_the_authority() -> None:
    url = parse_connection_url("postgresql://u@h/d?sslcert=ca.pem&sslmode=verify-ca")
    assert url.tls_files == (("sslrootcert", "ca.pem"),)
    url = parse_connection_url("postgresql://u@h/d?sslcert=me.pem&sslkey=me.key")
    assert url.tls_files == (("sslcert", "me.pem"), ("sslkey", "me.key"))


def test_quotes_and_drivers_around_the_url_do_no_harm() -> None:
    assert parse_connection_url('"postgresql+asyncpg://u@h/d"').hosts == ("h",)


def test_neither_repr_nor_label_shows_the_password() -> None:
    url = parse_connection_url("postgresql://user:topsecret@host/db")
    assert "topsecret" not in repr(url) + url.label
    assert url.label == "host:5432/db"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://u:topsecret@h/d", "not a Postgres address"),
        ("topsecret", "not a Postgres address"),
        ("", "not a Postgres address"),
        ("prisma+postgres://accelerate.example/?api_key=topsecret", "direct postgresql:// URL"),
        ("postgresql://u:topsecret?@h/d", "percent-encode"),
        ("postgresql://u:p@h:port/d", "percent-encode"),
        ("postgresql://u:p@h/d?sslmode=maybe", "sslmode"),
    ],
)
def test_what_is_no_address_gets_a_sentence_without_the_secret(url: str, sentence: str) -> None:
    with pytest.raises(DatabaseError, match=sentence) as raised:
        parse_connection_url(url)
    assert "topsecret" not in str(raised.value)


@given(st.text(max_size=60), st.sampled_from(["postgresql://", "postgres://u:p@h/d?", ""]))
def test_no_text_makes_it_raise_anything_but_its_own_sentence(text: str, start: str) -> None:
    with contextlib.suppress(DatabaseError):
        _ = parse_connection_url(start + text).label
