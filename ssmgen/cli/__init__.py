"""The command line: one thin function a verb, in the order in which `ssmgen --help` shows them."""

from ssmgen.cli import making, proving
from ssmgen.cli.app import app

__all__ = ["app", "making", "proving"]
