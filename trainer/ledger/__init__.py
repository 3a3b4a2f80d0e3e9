"""The trainer's memory: the only room that writes or reads schema `hindsight`."""
