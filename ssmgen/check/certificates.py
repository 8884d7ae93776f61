"""The verb `certify`: which contracts, what is printed, and where certificates are kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ssmgen import table
from ssmgen.check.certificate import MARGIN, Certificate, Margin
from ssmgen.errors import OutputError, UsageError
from ssmgen.loading import need


def run(operators: Sequence[str], folder: Path | None) -> list[Certificate]:
    """Certify the named operators' contracts, or all, with progress where somebody watches; written to `folder`.

    UsageError for an operator that has no contract, OutputError for a folder that cannot be written.
    """
    need("torch", "pip install torch; a CPU build is enough")
    from ssmgen.check.certificate import certify
    from ssmgen.check.contracts import CONTRACTS

    for name in operators:
        if name not in CONTRACTS:
            raise UsageError(f"no contract for {name!r}", expected="one of " + ", ".join(CONTRACTS))
    names = list(dict.fromkeys(operators)) or list(CONTRACTS)
    made = []
    with table.progress("certifying", len(names)) as step:
        for name in names:
            made.append(certify(CONTRACTS[name]))
            step(name)
    if folder is not None:
        for each in made:
            write(each, folder)
    return made


def text(certificate: Certificate) -> str:
    """As it is kept: the same for the same contract."""
    return json.dumps(certificate.as_json(), indent=1) + "\n"


def write(certificate: Certificate, folder: Path) -> None:
    """Keep a certificate as <operator>.json."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{certificate.operator}.json").write_text(text(certificate), encoding="utf-8")
    except OSError as e:
        raise OutputError(f"cannot be written: {e.strerror}", where=folder) from None


def show(made: Sequence[Certificate]) -> None:
    """A table a contract, and every refusal."""
    for each in made:
        rows = [_row(name, [m for m in each.terms if m.wrong == name]) for name in _names(each.terms)]
        rows += [_row(name, [m for m in each.trivial if m.wrong == name]) for name in _names(each.trivial)]
        state = "certified" if each.certified else "REFUSED"
        title = f"{each.operator}: {state}; a result without …, in units of its limit (at least {MARGIN:g})"
        table.show(title, ("without", "least", "for", "on", "does not show for"), rows)
        for refusal in each.refusals:
            print(f"  refused: {refusal}")
        reasons = dict.fromkeys(f"  {m.regime}: {m.blind}" for m in each.terms if m.blind)
        print("\n".join(("does not show, because", *reasons)) + "\n" if reasons else "")


def _names(margins: Sequence[Margin]) -> list[str]:
    return list(dict.fromkeys(m.wrong for m in margins))


def _row(name: str, margins: Sequence[Margin]) -> tuple[str, ...]:
    seen = [m for m in margins if not m.blind]
    least = min(seen, key=lambda m: m.margin) if seen else margins[0]
    hidden = ", ".join(m.regime for m in margins if m.blind)
    return name, f"{least.margin:.0f}", least.regime, least.output, hidden
