"""The seal of a generated file: the digest of its own text, so that any edit shows.

It compares nothing with a spec: `ssmgen generate --check` does.
"""

from __future__ import annotations

import hashlib
import re

UNSEALED = "body sha256:" + "0" * 16
_SEAL = re.compile(r"body sha256:([0-9a-f]{16})")


def seal(text: str) -> str:
    """`text` with its one UNSEALED mark replaced by the digest of the whole."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return text.replace(UNSEALED, f"body sha256:{digest}", 1)


def is_edited(text: str) -> bool:
    """Whether `text` differs from what was sealed."""
    return seal(_SEAL.sub(UNSEALED, text, count=1)) != text or not _SEAL.search(text)
