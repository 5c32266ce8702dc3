"""The pytest plug-in of the conformance kits: full assertion diffs in an author's own project."""

import pytest

pytest.register_assert_rewrite(
    "statekeep.testing.backend_hooks",
    "statekeep.testing.backend_restore_tests",
    "statekeep.testing.backend_clean_up_tests",
    "statekeep.testing.backend_tests",
    "statekeep.testing.blob_store_tests",
    "statekeep.testing.store_tests",
)
