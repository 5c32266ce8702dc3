"""The settings of state backends: see `statekeep.config.keys`."""

from datetime import date

from statekeep.config.key import Key
from statekeep.config.values import (
    ANY_TEXT,
    BLOB_COMPRESSIONS,
    BLOB_ENCRYPTIONS,
    DATE,
    TEXT,
    BlobCompression,
    BlobEncryption,
    byte_count,
    decimal,
    milliseconds,
    optional,
    whole_number,
)

BACKEND_FACTORY: Key[str | None] = Key(
    "backends.<backend>.factory",
    optional(TEXT),
    None,
    "Short name or dotted path of the factory behind a backend's name, so that two places of one "
    "kind can stand side by side.",
    "A name is mostly its own factory.",
    default_text="the backend's name",
)
BACKEND_SETTING: Key[str | None] = Key(
    "backends.<backend>.<setting>",
    optional(ANY_TEXT),
    None,
    "A setting of one backend, checked by its factory; for blob backends the keys `blob.store.*` "
    "without their prefix, and those win over them.",
    "See the backend.",
    default_text="the backend's",
)
BLOB_URI: Key[str | None] = Key(
    "blob.store.uri",
    optional(TEXT),
    None,
    "Where blob backends keep everything: `s3://bucket/path`, `file:///path`, ...",
    "No place is right for everyone. On Spark: beside the checkpoint location.",
    default_text="none",
)
BLOB_MANAGER_FACTORY: Key[str | None] = Key(
    "blob.store.manager.factory",
    optional(TEXT),
    None,
    "Dotted path of a class that builds the blob store's client.",
    "The scheme of the URI tells which client is needed.",
    default_text="by the scheme of the URI",
)
BLOB_MAX_IN_FLIGHT = Key(
    "blob.store.max.in.flight",
    whole_number(1, 1024, what="calls"),
    64,
    "Calls to the blob store that are under way at once, of all tasks of a container.",
    "As many as the container's pool may have threads.",
)
BLOB_SNAPSHOT_DELTA_RATIO = Key(
    "blob.store.snapshot.max.delta.ratio",
    decimal(0, 10),
    0.15,
    "A snapshot of a store's files is due when the deltas since the last one reach this part of its "
    "size; in between, a commit uploads its changes. 0: every commit uploads the files that are new.",
    "A restore reads at most so much more than the files, and applies it; the lower, the more of what "
    "compaction rewrites is uploaded.",
)
BLOB_SNAPSHOT_MAX_DELTAS = Key(
    "blob.store.snapshot.max.deltas",
    whole_number(1, 100_000, what="deltas"),
    500,
    "A snapshot of a store's files is due when so many deltas follow the last one.",
    "A restore fetches each of them, and one index in 32 names them all, at 400 bytes each.",
)
BLOB_PACK_FILE_BYTES = Key(
    "blob.store.pack.max.file.bytes",
    byte_count(0, 4 << 20),
    256 << 10,
    "Files up to this size, at most 4 MiB, share a blob with others of their commit and store; "
    "0: each has its own.",
    "A request costs as much time as this many bytes, and most files of a commit are smaller.",
)
BLOB_COMPRESSION: Key[BlobCompression] = Key(
    "blob.store.compression",
    BLOB_COMPRESSIONS,
    "none",
    "Compression of what is uploaded, on top of that of the store's own files.",
    "RocksDB's files are compressed already.",
)
BLOB_ENCRYPTION: Key[BlobEncryption] = Key(
    "blob.store.encryption",
    BLOB_ENCRYPTIONS,
    "none",
    "Encryption of state before it leaves the machine.",
    "It needs keys, and whoever loses them loses the backups.",
)
BLOB_ENCRYPTION_KEYS: Key[str | None] = Key(
    "blob.store.encryption.keys",
    optional(TEXT),
    None,
    "Where keys come from: `file:<path>`, `env:<variable>`, or the dotted path of a `KeyProvider`. "
    "Needed for as long as a retained commit is encrypted.",
    "Keys are kept apart from settings.",
    default_text="none",
    is_secret=True,
)
BLOB_ENCRYPTION_PLAIN_UNTIL: Key[date | None] = Key(
    "blob.store.encryption.plain.until",
    optional(DATE),
    None,
    "Last day (UTC, by this machine's clock) on which an encrypted backend still reads what is plain or "
    "of an older format, so that a job can go on from before encryption. Until it is over, who can write "
    "to the place can put plain state there.",
    "What is not authenticated is refused.",
    default_text="none",
)
BLOB_MAX_RETRIES = Key(
    "blob.store.retry.policy.max.retries",
    whole_number(-1, what="retries"),
    -1,
    "Most retries of one call; -1: as many as the time allows.",
    "Time is what a commit has to keep, not a number of tries; the value is Samza's.",
)
BLOB_MAX_RETRY_MS = Key(
    "blob.store.retry.policy.max.retry.duration.millis",
    milliseconds(0),
    900_000,
    "Longest time that one call is retried for, from its first failure on.",
    "Half of the commit timeout; the value is Samza's.",
)
BLOB_START_TIMEOUT_MS = Key(
    "blob.store.start.timeout.ms",
    milliseconds(1),
    60_000,
    "How long a start retries a store that does not answer, and the check of a backend does.",
    "Long enough for transient failures; short enough to report a wrong URI or missing permission "
    "while you watch.",
)
# The waits are short, unlike Samza's, which grow to five minutes: whatever waits when an outage ends
# stalls for the rest of its wait, and a commit that stalls holds up batches. With these values every
# call is tried again 1 to 3 s after the end of an outage of any length.
# - Load: a store that is down costs one connection per try. At most `max.in.flight` tries of a
#   container are under way at once, before the end of an outage as after it.
# - Jitter: calls that failed together spread over the two seconds between the shortest and the
#   longest wait, so that many tasks do not return together.
# - Throttling needs longer waits, and gets them elsewhere: an answer such as S3's SlowDown makes all
#   transfers of the container rest, up to half a minute (`backends.pacing.Throttle`). Kafka's client
#   waits by itself for as long as a broker asks.
BLOB_BACKOFF_MS = Key(
    "blob.store.retry.policy.backoff.delay.millis",
    milliseconds(1),
    100,
    "Wait before the first retry.",
    "Most failures that pass by themselves have passed by then; the value is Samza's.",
)
BLOB_BACKOFF_MAX_MS = Key(
    "blob.store.retry.policy.backoff.max.delay.millis",
    milliseconds(1),
    2_000,
    "Longest wait between two retries, before jitter.",
    "Whatever waits when an outage ends goes on within 3 seconds. Answers that ask for fewer requests "
    "have longer waits of their own.",
)
BLOB_BACKOFF_FACTOR = Key(
    "blob.store.retry.policy.backoff.delay.factor",
    decimal(1, 100),
    5.0,
    "By how much each wait is longer than the one before.",
    "The third wait is the longest; the value is Samza's.",
)
BLOB_JITTER_FACTOR = Key(
    "blob.store.retry.policy.jitter.factor",
    decimal(0, 1),
    0.5,
    "By which part of itself each wait varies at random, up and down.",
    "Calls that failed together spread over two seconds.",
)
