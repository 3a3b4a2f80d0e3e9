-- What is known afterwards about a window, beside markets: quests, tickets, anything. The game's owner writes it, no agent.
CREATE TABLE hindsight.window_facts (
    window_id text NOT NULL CHECK (window_id ~ '^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:00$'),
    subject text NOT NULL CHECK (length(subject) BETWEEN 1 AND 200),
    kind text NOT NULL CHECK (length(kind) BETWEEN 1 AND 60),
    source text NOT NULL DEFAULT 'game' CHECK (length(source) BETWEEN 1 AND 60),
    value_before float8,
    value_after float8,
    text text CHECK (length(text) <= 2000),
    happened_at timestamptz,
    visible boolean NOT NULL DEFAULT false,
    first_written timestamptz NOT NULL DEFAULT now(),
    written_at timestamptz NOT NULL DEFAULT now(),
    corrections integer NOT NULL DEFAULT 0,
    PRIMARY KEY (window_id, subject, kind, source)
);
