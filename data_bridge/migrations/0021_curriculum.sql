-- The curriculum of a model: rounds of draws, each with the difficulty that it aimed at. The next aim follows from them.
CREATE TABLE hindsight.curriculum_rounds (
    model    text        NOT NULL,
    kind     text        NOT NULL CHECK (kind IN ('market', 'log')),
    round    integer     NOT NULL,
    run_id   text        NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    aim      float8      NOT NULL,
    arms     jsonb       NOT NULL,
    drawn_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (model, kind, round)
);
COMMENT ON COLUMN hindsight.curriculum_rounds.arms IS 'List of {name, difficulty, weight, chance}, from easy to hard.';
CREATE TABLE hindsight.curriculum_draws (
    run_id    text    NOT NULL REFERENCES hindsight.runs ON DELETE CASCADE,
    window_id text    NOT NULL,
    model     text    NOT NULL,
    kind      text    NOT NULL,
    round     integer NOT NULL,
    place     integer NOT NULL,
    arm       text    NOT NULL,
    succeeded integer,
    tried     integer,
    PRIMARY KEY (run_id, window_id),
    FOREIGN KEY (model, kind, round) REFERENCES hindsight.curriculum_rounds ON DELETE CASCADE
);
COMMENT ON COLUMN hindsight.curriculum_draws.tried IS
    'Of a log: agents whose gain was known when it was drawn. How a simulated window went is with the window.';
CREATE INDEX curriculum_draws_by_round ON hindsight.curriculum_draws (model, kind, round);

-- What came of a simulated window, and which states its decisions were made in: where the log is thin, more is explored.
ALTER TABLE hindsight.simulated_windows
    ADD COLUMN tried integer, ADD COLUMN succeeded integer, ADD COLUMN states text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN hindsight.simulated_windows.tried IS 'Agents that did not explore; null before there was a curriculum.';
COMMENT ON COLUMN hindsight.simulated_windows.succeeded IS 'Of them, those that ended the window with a profit.';
