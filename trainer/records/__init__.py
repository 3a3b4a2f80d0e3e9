"""What the ledger is made of: its states and transitions, rows, the game's own rows, and the model's lock."""
