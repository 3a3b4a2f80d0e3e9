"""From judged groups to a durable checkpoint, each batch once.

``selection`` receives the verdicts and keeps the groups that have a training signal; it also computes advantages.
``credit`` tells a group's validity from its decisions, ``pattern_weights`` says which groups count more because they
show an error pattern; ``reward_history`` computes a step's advantages again, and
``step_credit`` credits decisions instead of whole trajectories, shaped by a ``potential`` if asked. ``replay`` collects
the places of a step and fills those that are left empty with groups that were trained before; ``carried`` keeps what a
pass leaves over for the next, both by reference (``stored_groups``). ``stage`` forms batches of them: it prepares,
stores, trains and records each, in an order that makes a crash harmless. ``backends`` make the gradient step. After a
crash ``settle`` makes the ledger and the backend agree before anything else is trained. ``thresholds`` stops a run;
``collapse`` notices a model that says the same in every hour, and ``recovery`` goes back to before. ``tracking``
reports to wandb and never delays training. The promise: a step without a trainable token is an error, and every
trajectory that is not trained has a reason.
"""
