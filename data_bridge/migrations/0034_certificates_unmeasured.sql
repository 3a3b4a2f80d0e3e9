-- What an examination could not measure on its material, by the name of the property, and why.
ALTER TABLE hindsight.certificates ADD COLUMN unmeasured jsonb NOT NULL DEFAULT '{}';
