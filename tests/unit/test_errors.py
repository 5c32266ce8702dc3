import pickle
import traceback

from statekeep.errors import BlobNotFoundError, ConfigError, RetriableError


def test_hint_is_part_of_the_text_and_shown_once_in_a_traceback() -> None:
    error = ConfigError("unknown setting: key=stores.stat", hint="did you mean stores.state?")

    assert str(error) == "unknown setting: key=stores.stat; hint: did you mean stores.state?"
    assert error.message == "unknown setting: key=stores.stat"
    assert "".join(traceback.format_exception(error)).count("did you mean") == 1


def test_hint_that_is_added_later_is_part_of_the_text() -> None:
    error = RetriableError("no answer: host=h")
    error.add_note("hint: start the server")
    error.add_note("gave up: tries=3")

    assert str(error) == "no answer: host=h; hint: start the server"
    assert error.__notes__ == ["gave up: tries=3"]


def test_hint_outlives_pickling() -> None:
    error = BlobNotFoundError("a/b")
    error.add_note("hint: ask another backend")

    assert error.hints == ("ask another backend",)
    assert str(pickle.loads(pickle.dumps(ConfigError("no", hint="yes")))) == "no; hint: yes"  # noqa: S301


def test_text_without_a_hint_is_the_message() -> None:
    assert str(BlobNotFoundError("a/b")) == "blob not found: blob_id=a/b"
