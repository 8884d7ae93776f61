"""What a checker has to know of an operator, one module an operator; `base` says what that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssmgen.check.contracts.base import Contract
from ssmgen.check.contracts.gated_delta_rule_packed_decode import PackedDecode
from ssmgen.check.contracts.mamba_chunk_scan_combined import Forward
from ssmgen.check.contracts.selective_state_update import Update

CONTRACTS: Mapping[str, Contract[Any, Any]] = {each.name: each for each in (Forward(), Update(), PackedDecode())}
"""By operator."""
