"""What every regime is run by: study files, plans, ledgers, checkpoints, sessions."""
