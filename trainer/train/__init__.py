"""From judged groups to a durable checkpoint, each batch once.

``selection`` takes the verdicts and keeps the groups that have something to teach; it is also where advantages are
computed. ``stage`` makes batches of them: prepares, stores, trains, writes the books, in the order that makes a crash
harmless. ``backends`` is where the gradient step happens. After a crash ``settle`` makes the ledger and the backend
agree before anything else is trained. ``thresholds`` stops a collapsing run, ``tracking`` tells wandb and is never in
the way. Promised: a step without a trainable token is an error, and every trajectory that is not trained has a reason.
"""
