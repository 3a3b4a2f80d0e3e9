-- What an order that was not asked for would have told, what a provider's prefix cache served, and which pass it was.

-- One decision for each further order of a group: made once, so that a later run and another host come to the same
-- verdict, and no skipped call is without its reason.
CREATE TABLE hindsight.order_decisions (
    verdict_key  text             NOT NULL,
    order_number integer          NOT NULL CHECK (order_number > 0),
    is_asked     boolean          NOT NULL,
    reason       text             NOT NULL CHECK (reason IN ('sample', 'unmeasured', 'uncertain', 'clear')),
    most_orders  integer          NOT NULL,
    order_sd     double precision,
    turned_share double precision,
    run_id       text             NOT NULL,
    decided_at   timestamptz      NOT NULL DEFAULT now(),
    PRIMARY KEY (verdict_key, order_number)
);
CREATE INDEX order_decisions_measuring ON hindsight.order_decisions (decided_at)
    WHERE order_number = 1 AND reason IN ('sample', 'unmeasured');
COMMENT ON COLUMN hindsight.order_decisions.is_asked IS
    'False: this order and all later ones, up to most_orders, were not asked for.';
COMMENT ON COLUMN hindsight.order_decisions.order_sd IS
    'Standard deviation of one score between orders, pooled over the groups that measure it, when this was decided.';
COMMENT ON COLUMN hindsight.order_decisions.turned_share IS
    'Share of the differences within the group that this order was expected to turn round.';

ALTER TABLE hindsight.verdicts ADD COLUMN cached_tokens integer NOT NULL DEFAULT 0;
ALTER TABLE hindsight.judge_calls ADD COLUMN cached_tokens integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN hindsight.judge_calls.cached_tokens IS
    'How many of prompt_tokens the provider served from its prefix cache, as its usage says.';

ALTER TABLE hindsight.verdicts ADD COLUMN pass text NOT NULL DEFAULT 'hindsight' CHECK (pass IN ('hindsight', 'blind'));
COMMENT ON COLUMN hindsight.verdicts.pass IS
    'blind: scored without the outcome, the first of two passes; it counts through the verdict of the second.';
