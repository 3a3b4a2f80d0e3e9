"""Who serves whom: the history of promotions, the pointer, canaries, the game's table, and the release."""
