-- The reward history: how each member of a batch came from its verdict to the advantage that was trained.
ALTER TABLE hindsight.batches ADD COLUMN credit_rule jsonb;
COMMENT ON COLUMN hindsight.batches.credit_rule IS
    'The numbers that credit depended on besides the verdicts; null: no reward history (before 0016, or a backend with rewards of its own).';

CREATE TABLE hindsight.rewards (
    batch_id      text     NOT NULL REFERENCES hindsight.batches ON DELETE CASCADE,
    number        integer  NOT NULL,
    place         integer  NOT NULL,
    group_id      text     NOT NULL,
    trajectory_id text     NOT NULL,
    score         float8   NOT NULL,
    uncertainty   float8   NOT NULL,
    answer        text,
    valid_share   float8,
    validity      float8   NOT NULL,
    decision      float8   NOT NULL,
    weight        float8   NOT NULL,
    shaped        float8   NOT NULL,
    credit        float8   NOT NULL,
    advantage     float8   NOT NULL,
    PRIMARY KEY (batch_id, number)
);
COMMENT ON COLUMN hindsight.rewards.place IS 'Of the group in the batch.';
COMMENT ON TABLE hindsight.rewards IS
    'In the order of the batch, with the members of which nothing was trained: they count for means and weights. score to valid_share are what was read, the rest follows from them by the batch''s credit_rule, bit for bit.';
