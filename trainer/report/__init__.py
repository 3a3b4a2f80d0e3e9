"""One self-contained page a run: ``facts`` gathers it from the ledger, ``charts`` draws, ``page`` puts it together."""
