-- Which judge, with which rubric, was found fit to train on, and by which measurements.
CREATE SCHEMA IF NOT EXISTS hindsight;

CREATE TABLE hindsight.certificates (
    certificate_id text             PRIMARY KEY,
    judge          text             NOT NULL,
    rubric         text             NOT NULL,
    rubric_version text             NOT NULL,
    prompt_version text             NOT NULL,
    material       text             NOT NULL CHECK (material IN ('simulated', 'windows')),
    passed         boolean          NOT NULL,
    lines          jsonb            NOT NULL,
    groups         integer          NOT NULL,
    calls          integer          NOT NULL,
    cost_usd       double precision NOT NULL,
    created_at     timestamptz      NOT NULL DEFAULT now()
);
CREATE INDEX certificates_by_judge
    ON hindsight.certificates (judge, rubric, rubric_version, prompt_version, created_at DESC);
