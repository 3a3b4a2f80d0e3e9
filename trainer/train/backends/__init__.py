"""Where training happens: the CPU, a local GPU, or W&B Serverless RL, each a ``TrainingBackend`` (``trainer.types``).

``choose`` picks one by what is available: a key, a GPU. All prepare a batch in the same way (``prepare``: verdicts
become ART groups with rewards, and every member without a training signal gets a reason). Then each trains it once, to
a durable checkpoint:

- ``cpu`` trains by itself, on the checkpoint that is ``loaded``: ``packing`` makes sequences of the groups,
  ``correction`` says what tokens of another policy count in them, ``cpu_step`` updates the policy of
  ``trainer.inference.policy`` with them, ``balance`` takes out a preference for one answer that is the same in every
  hour, and ``cpu_faults`` tries what a step would raise; ``ranks`` shares a step among several processes
  (``rank``, started by ``rank_process``) by ``rank_orders``, which add up their gradients by ``gradient_exchange``;
- ``local`` lets ART train on the GPU; ``adapter_files`` checks which of ART's checkpoints are complete;
- ``serverless`` sends it to W&B and follows the job (``remote_job``), so that no job is lost and none is sent twice.

The last two leave scoring to the trainer (``deferred``). The CPU backend can also go back to an earlier checkpoint
(``forks``), and begin a lineage with another's adapter (``transfer``). All of them use ART through ``art_interface``.
Choosing imports neither torch nor art.
"""
