"""The console command, and `python -m ssmgen`: Ctrl-C ends it with one line of advice, also while it still imports.

It parses nothing: `cli` does. It imports nothing before the guard is up.
"""


def main() -> None:
    """Run the command line; exit code 2 after Ctrl-C."""
    try:
        from ssmgen.cli import app

        app()
    except KeyboardInterrupt:
        import signal
        import sys

        # a second Ctrl-C must not end the message in a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from ssmgen.errors import Interrupted

        print(f"\nerror: {Interrupted()}", file=sys.stderr)
        sys.exit(Interrupted.exit_code)


if __name__ == "__main__":
    main()
