"""Secrets stay out of everything that a person or a log reads."""

import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secret_kit import SECRET, TEXTS

from statekeep.config.load import load_dict
from statekeep.config.redact import is_secret_name, may_be_secret, redact, redact_text
from statekeep.errors import ConfigError

SECRETS = st.text("abcdefghijklmnopqrstuvwxyz0123456789/+=@:?", min_size=12, max_size=40).map(
    lambda text: f"Zq9{text}"
)
"""Begin with what no message of ours contains."""

SECRET_KEYS = st.sampled_from(
    [
        "backends.b.secret",
        "backends.b.aws.secret.access.key",
        "backends.b.access_key_id",
        "backends.b.AccountKey",
        "backends.b.db.password",
        "backends.b.PASSWD",
        "backends.b.session.token",
        "backends.b.credential",
        "backends.b.credentials.json",
        "backends.b.sas",
        "backends.b.connection.string",
        "backends.b.connection_string",
        "backends.b.connectionString",
        "backends.b.storage.options.key",
        "backends.b.passphrase",
        "backends.b.auth",
        "backends.b.pin",
        "backends.b.account_key",
        "backends.b.client.ssl.key.pem",
        "backends.b.client.sasl.jaas.config",
        "backends.b.storage.options.client_kwargs",
        "backends.b.s3.proxy",
        "backends.b.whatever",
    ]
)


@settings(deadline=None)
@given(key=SECRET_KEYS, secret=SECRETS)
def test_a_secret_is_in_no_text_of_a_configuration(key: str, secret: str) -> None:
    config = load_dict({"job.name": "j", key: secret})
    shown = [repr(config), str(config), repr(config.settings), str(config.explain())]
    assert not any(secret in text for text in shown)
    assert all(key in text for text in shown)
    assert config.backend_settings("b", "blob.store")[key.removeprefix("backends.b.")] == secret


@settings(deadline=None)
@given(key=SECRET_KEYS, secret=SECRETS)
def test_a_secret_is_in_no_error(key: str, secret: str) -> None:
    config = load_dict({"job.name": "j", key: secret})
    with pytest.raises(ConfigError, match="no store lists the backend") as unused:
        config.check()
    with pytest.raises(ConfigError, match="unknown setting") as unknown:
        load_dict({key.removeprefix("backends."): secret})
    with pytest.raises(ConfigError, match="must be") as mistyped:
        load_dict({key: {"nested": secret}})  # type: ignore[dict-item]  # what a caller may do
    for caught in (unused, unknown, mistyped):
        assert secret not in "".join(traceback.format_exception(caught.value))


@settings(deadline=None)
@given(
    user=st.from_regex(r"Zq9[a-z]{3,10}", fullmatch=True),
    password=st.from_regex(r"Zq8[a-z/@:?]{3,10}", fullmatch=True),
    signature=st.from_regex(r"Zq7[a-z/@%=&]{3,10}", fullmatch=True),
)
def test_a_uri_is_shown_without_user_password_and_query(
    user: str, password: str, signature: str
) -> None:
    uri = f"https://{user}:{password}@host.example/container?sig={signature}"
    config = load_dict({"blob.store.uri": uri})
    shown = repr(config) + str(config.explain())
    assert not any(part in shown for part in (user, password, signature))


def test_a_plain_uri_is_shown_whole() -> None:
    assert redact("s3://bucket/some/path", is_secret=False) == "s3://bucket/some/path"


def test_a_uri_in_an_error_hides_its_secrets_too() -> None:
    secret = "silence".upper()
    with pytest.raises(ConfigError, match=r"value='https://\*\*\*@host/\?\*\*\*'") as caught:
        load_dict({"task.commit.ms": f"https://me:{secret}@host/?sig={secret}"})
    assert secret not in "".join(traceback.format_exception(caught.value))


def test_values_of_the_keys_that_we_define_are_shown() -> None:
    config = load_dict({"stores.token.changelog": "kafka.tokens"})
    assert "kafka.tokens" in repr(config)


@pytest.mark.parametrize("name", ["backends.b.uri", "backends.b.region", "backends.b.root"])
def test_settings_of_a_backend_that_are_no_secrets_are_shown(name: str) -> None:
    assert not is_secret_name(name)
    assert "harmless" in repr(load_dict({name: "harmless"}))


@pytest.mark.parametrize(
    ("name", "is_shown"),
    [
        ("uri", True),
        ("client.security.protocol", True),
        ("client.sasl.mechanisms", True),
        ("client.ssl.ca.location", True),
        ("client.socket.timeout.ms", True),
        ("storage.options.endpoint_url", True),
        ("pinned.size", True),
        ("passphrase", False),
        ("key.passphrase", False),
        ("auth", False),
        ("basic.auth.user.info", False),
        ("pin", False),
        ("pin.size", False),
        ("card_pin", False),
        ("userPin", False),
        ("connection_string", False),
        ("connection.string", False),
        ("account_key", False),
        ("client.ssl.key.pem", False),
        ("client.ssl.key.location", False),
        ("client.sasl.jaas.config", False),
        ("client.sasl.password", False),
        ("sasToken", False),
        ("sas", False),
        ("token.uri", False),
        ("PWD", False),
        ("http.proxy", False),
        ("label", False),
        ("", False),
    ],
)
def test_of_a_setting_that_is_not_ours_only_what_is_known_to_be_harmless_is_shown(
    name: str, *, is_shown: bool
) -> None:
    assert may_be_secret(name) is not is_shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:Zq9@proxy:3128", "http://***@proxy:3128"),
        ("me:Zq9@proxy:3128", "***@proxy:3128"),
        ("http=http://me:Zq9@a,https=http://me:Zq9@b", "http=http://***@b"),
        ("Error: password=Zq9 was refused", "Error: password=*** was refused"),
        ('{"sasl.password": "Zq9 Zq9", "a": 1}', '{"sasl.password": ***, "a": 1}'),
        ("AccountName=a;AccountKey=Zq9==;Suffix=b", "AccountName=a;AccountKey=***;Suffix=b"),
        ("x: SharedAccessKey=Zq9", "x: SharedAccessKey=***"),
        ("no answer: root=s3://bucket/a key=backends.b.secret source=x:3", None),
        ("me:Zq9@proxy does not reach http://host", "***@proxy does not reach http://host"),
        ("jdbc:pg://me:Zq9@host/b", "jdbc:pg://***@host/b"),
        ("broker-1:9092,broker-2:9092", None),
        ("TypeError: a@b", None),
    ],
)
def test_a_text_is_shown_without_the_secrets_in_it(text: str, shown: str | None) -> None:
    assert redact(text, is_secret=False) == (text if shown is None else shown)


@pytest.mark.parametrize("text", TEXTS)
def test_a_sentence_is_shown_without_the_secrets_in_it(text: str) -> None:
    shown = redact_text(f"backend=s3 {text}")
    assert SECRET not in shown
    assert shown.startswith("backend=s3 ")
    assert redact_text(shown) == shown


def test_a_sentence_goes_on_after_the_query_of_a_uri() -> None:
    text = "GET s3://bucket/x?sig=Zq9 failed: store=counts backend=far\nhint: start again"
    shown = "GET s3://bucket/x?*** failed: store=counts backend=far\nhint: start again"
    assert redact_text(text) == shown


@pytest.mark.parametrize("word", ["x", "secret", "access", "session"])
def test_a_long_word_takes_no_long_time_to_read(word: str) -> None:
    text = word * 30_000  # the rest of the word was looked through from each of its places
    assert redact_text(text) == text
