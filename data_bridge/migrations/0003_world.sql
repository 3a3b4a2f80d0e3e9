-- The simulated market's own memory: what was played, and the planted truth about who played it.
-- Nothing that trains or judges reads these tables; replay and the certification of judges do.
CREATE SCHEMA IF NOT EXISTS hindsight;

CREATE TABLE hindsight.simulated_windows (
    window_id      text PRIMARY KEY,
    world_seed     bigint NOT NULL,
    luck           double precision NOT NULL,
    stage          text NOT NULL,
    decisions      integer NOT NULL,
    prompt_version text NOT NULL,
    window_index   integer NOT NULL,
    limits         jsonb NOT NULL,
    tape           jsonb NOT NULL
);
COMMENT ON COLUMN hindsight.simulated_windows.window_index IS 'How many windows this world had played before it.';
COMMENT ON COLUMN hindsight.simulated_windows.tape IS 'Prices as played, with the influence of the agents'' orders.';

CREATE TABLE hindsight.simulated_agents (
    agent_id         text PRIMARY KEY,
    world_seed       bigint NOT NULL,
    agent_index      integer NOT NULL,
    name             text NOT NULL,
    role             text NOT NULL,
    starting_balance double precision NOT NULL,
    balance          double precision NOT NULL,
    lifetime_pnl     double precision NOT NULL,
    skill            double precision
);
COMMENT ON COLUMN hindsight.simulated_agents.skill IS 'Planted, between 0 and 1; NULL if a model decides.';
