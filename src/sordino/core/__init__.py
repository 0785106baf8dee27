"""The core that runs every regime: study files, plans, ledgers, checkpoints, sessions."""
