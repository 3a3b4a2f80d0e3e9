"""The life of one training command, from its lock to its report; what is trained is the pipeline's business.

``train`` holds the model's lock, has the backend mended after a crash, plans the log and trains it; on the simulated
market ``closed_loop`` plays a day, trains on it and plays the next. ``session`` is what such a command has open;
``training_run`` begins a run in the ledger or takes it up, and says how it ended; ``after_training`` evaluates, asks
the gate and makes room. ``live_view`` shows it, ``shutdown`` turns the first signal into a stop after the step in hand,
``code_version`` says which code ran. ``judge_windows`` judges without training. A run that did not end as done is taken
up by the same command.
"""
