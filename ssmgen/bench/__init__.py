"""Named problems, the peers, and how both are timed: the same way, in the same run. GPU only."""
