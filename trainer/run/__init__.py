"""The life of one training command, from its lock to its report; the pipeline does the training itself.

``train`` holds the model's lock, repairs the backend after a crash, plans the log and trains on it; on the simulated
market ``closed_loop`` plays a day, trains on it and plays the next, or both at once (``side_by_side``). ``session`` is
what such a command has open; ``training_run`` starts or resumes a run in the ledger and records how it ended, ``gone``
what it was doing when the database was lost; ``after_training`` evaluates, asks the gate and deletes old checkpoints.
``live_view`` shows progress, ``shutdown`` turns the first signal into a stop after the current step, ``code_version``
says which code ran. ``curriculum`` draws what is played and trained next, ``leave_one_out`` is what HOLD would have
scored. ``reporting`` tells the ledger how far a run is. ``judge_windows`` judges without training, ``export_groups``
hands what was judged to another engine; ``score`` judges one trajectory on demand, ``check_report`` says what can be
trained and ``judge_reach`` what the chosen judge can do there; ``advice`` is a console's advisor and what it learns,
``calibrate_advice`` what its confidence means; ``promotion`` promotes, rolls back and settles canaries by stored
evidence. ``distilling`` keeps lessons beside a run or later from the ledger, ``lesson_desk`` is what the console and
others look them up with, ``gate_lessons`` puts those from outside to the gate. ``policy_desk`` is the prompt policy as
it is served, ``prompt_learning`` what it learns on training windows by ``prompt_trials``, ``prompt_material`` what
mutations may draw on, ``prompt_release`` puts a prompt to the gate and releases it, ``prompt_lineage`` says where it
came from. The same command resumes a run that did not end as done.
"""
