-- A certificate proves what its edition of the examination measures: those of the first do not count any more.
ALTER TABLE hindsight.certificates ADD COLUMN edition integer NOT NULL DEFAULT 1;
